"""How far a batch is: counts, and what is told of them on stderr. Decides no more than the words.

In a terminal with rich it is a bar; elsewhere a plain line every ten seconds, which a log can take.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TextIO

from aswarm._usage import Usage
from aswarm.cli._output import clipped

from ._outcomes import FAILED

_SECONDS_BETWEEN = 10.0
_SHOWN = 20  # of a kind of trouble; who has more of it has a file


@dataclass(slots=True)
class Tally:
    """What has happened. `total`: lines to do, None where that is not known. `before`: lines that were done before.

    `is_read`: the input has been read to its end.
    """

    total: int | None = None
    begun: float = field(default_factory=time.monotonic)
    statuses: Counter[str] = field(default_factory=Counter[str])
    before: int = 0
    bad: int = 0
    is_read: bool = False
    usage: Usage = field(default_factory=Usage)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.begun

    @property
    def done(self) -> int:
        """Lines that there is nothing more to do for."""
        return self.statuses.total() + self.before + self.bad

    @property
    def rate(self) -> float:
        """Items in a second, of those that ran."""
        return self.statuses.total() / max(self.seconds, 1e-6)

    @property
    def left(self) -> float | None:
        """Seconds until the end; None where nobody knows."""
        if self.total is None or not self.rate:
            return None
        return max(self.total - self.done, 0) / self.rate

    def words(self) -> str:
        """Rate, time to go, tokens, failures."""
        parts = [f"{self.rate:,.1f}/s"]
        if self.left is not None:
            parts.append(f"{duration(self.left)} left")
        parts.append(f"{self.usage.total_tokens:,} tokens")
        parts.append(f"{self.statuses[FAILED]:,} failed")
        if self.bad:
            parts.append(f"{self.bad:,} bad lines")
        return ", ".join(parts)

    def progress(self) -> str:
        """How many of how many."""
        return f"{self.done:,}" if self.total is None else f"{self.done:,}/{self.total:,}"

    def summary(self, nothing: str = "nothing to do") -> list[str]:
        """What came of it, for the end; `nothing` where no item has ended."""
        ran = self.statuses.total()
        kinds = [f"{number:,} {_WORDS.get(status, status)}" for status, number in sorted(self.statuses.items())]
        lines = [f"{ran:,} items in {duration(self.seconds)} ({self.rate:,.1f}/s): {', '.join(kinds) or nothing}"]
        if self.before:
            lines.append(f"{self.before:,} were there before")
        usage = self.usage
        lines.append(
            f"{usage.total_tokens:,} tokens ({usage.prompt_tokens:,} in, {usage.completion_tokens:,} out) "
            f"in {usage.requests:,} completions"
        )
        return lines


_WORDS = {"answer": "answered", FAILED: "failed", "refusal": "refused", "max_turns": "ended by --max-turns"}


def duration(seconds: float) -> str:
    """Such as "8 s", "3 min 5 s" or "2 h 10 min"."""
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{whole} s"
    minutes, seconds_left = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004 - minutes of an hour
        return f"{minutes} min {seconds_left} s"
    return f"{minutes // 60} h {minutes % 60} min"


class Teller(ABC):
    """Tells of a batch while it runs."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._told: Counter[str] = Counter()

    def trouble(self, kind: str, text: str) -> None:
        """Tell of something that went wrong; of each kind only the first few."""
        self._told[kind] += 1
        if self._told[kind] <= _SHOWN:
            self.say(clipped(text))
        if self._told[kind] == _SHOWN:
            self.say(f"(more {kind} are counted, and not told)")

    @abstractmethod
    def say(self, text: str) -> None:
        """Write a line."""

    @abstractmethod
    def update(self) -> None:
        """The tally has changed."""


class Lines(Teller):
    """Plain lines, `every` so many seconds at most."""

    def __init__(self, tally: Tally, stream: TextIO, every: float = _SECONDS_BETWEEN) -> None:
        super().__init__(tally)
        self._stream = stream
        self._every = every
        self._next = tally.begun + every

    def say(self, text: str) -> None:
        """Write it at once."""
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def update(self) -> None:
        """Write a line, where it is time for one."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            self.say(f"{self.tally.progress()} done, {self.tally.words()}")


class Bar(Teller):
    """A bar by rich; what is said stands above it."""

    def __init__(self, tally: Tally, say: Callable[[str], None], show: Callable[[Tally], None]) -> None:
        super().__init__(tally)
        self._say = say
        self._show = show

    def say(self, text: str) -> None:
        """Write it above the bar."""
        self._say(text)

    def update(self) -> None:
        """Move the bar."""
        self._show(self.tally)


@contextmanager
def teller(tally: Tally, stream: TextIO, *, bar: bool = True) -> Generator[Teller]:
    """Tells on this stream until the block ends. `bar=False`: with plain lines, in a terminal too."""
    if bar and stream.isatty() and find_spec("rich"):
        with _bar(tally, stream) as shown:
            yield shown
    else:
        yield Lines(tally, stream)


@contextmanager
def _bar(tally: Tally, stream: TextIO) -> Generator[Bar]:
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    console = Console(file=stream)
    columns = (BarColumn(20), TextColumn("{task.description}", markup=False))
    # What tools print goes above the bar, but only where it is the terminal that it goes to.
    own = sys.stdout.isatty()
    with Progress(*columns, console=console, refresh_per_second=4, redirect_stdout=own, redirect_stderr=own) as bar:
        task = bar.add_task("", total=tally.total)

        def show(tally: Tally) -> None:
            bar.update(task, completed=tally.done, description=f"{tally.progress()}  {tally.words()}")

        show(tally)
        yield Bar(tally, lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True), show)
        show(tally)

"""The progress of a batch: `Counts` counts, and the reporters print the counts on stderr.

While the batch runs, a terminal shows a bar if rich is installed. Otherwise a plain line is printed every ten seconds.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

from aswarm import RateLimits
from aswarm._values.text import counted, one_line
from aswarm._values.usage import Usage

from .output import FAILED

if TYPE_CHECKING:
    from aswarm.evals._report import ProgressBar

_SECONDS_BETWEEN = 10.0
_WINDOW = 61.0  # seconds in which a limit of a minute applies: a request may arrive up to a second late
_SHOWN = 20  # the number of problems of one kind that are printed; the output has all problems
_WORDS = {
    "answer": "answered",
    FAILED: "failed",
    "refusal": "refused",
    "max_turns": "ended by --max-turns",
    "budget": "ended by --budget",
    "waiting": "waiting for a decision",
}


@dataclass(slots=True)
class Counts:
    """The counts of a batch. `total`: the lines of the input, or None if not known. `before`: items of earlier commands.

    `is_read`: whether the input has been read to its end. `unknown_calls`: for each item with calls whose outcome is unknown, the
    number of these calls, in this command and in earlier commands. `limits`: the limits of the swarm.
    """

    total: int | None = None
    started: float = field(default_factory=time.monotonic)
    statuses: Counter[str] = field(default_factory=Counter[str])
    before: int = 0
    bad: int = 0
    is_read: bool = False
    usage: Usage = field(default_factory=Usage)
    unknown_calls: list[int] = field(default_factory=list[int])
    limits: RateLimits = field(default_factory=RateLimits)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def done(self) -> int:
        """Lines that need no more work."""
        return self.statuses.total() + self.before + self.bad

    @property
    def rate(self) -> float:
        """Items per second, without the items of earlier commands."""
        return self.statuses.total() / max(self.seconds, 1e-6)

    @property
    def left(self) -> float | None:
        """The estimated seconds until the end, or None if there is no estimate."""
        if self.total is None or not self.rate:
            return None
        return max(self.total - self.done, 0) * max(1 / self.rate, self._seconds_by_limits())

    def _seconds_by_limits(self) -> float:
        """Return the seconds that the rate limits require for an item, if it uses as much as the finished items on average."""
        used = (
            (self.usage.requests, self.limits.requests_per_minute),
            (self.usage.total_tokens, self.limits.tokens_per_minute),
        )
        return max(_WINDOW * number / most / self.statuses.total() if most else 0.0 for number, most in used)

    def details(self) -> str:
        """Return a text with the rate, the time left, the tokens and the failures."""
        parts = [f"{self.rate:,.1f}/s"]
        if self.left is not None:
            parts.append(f"{duration(self.left)} left")
        parts.append(counted(self.usage.total_tokens, "token"))
        parts.append(f"{self.statuses[FAILED]:,} failed")
        if self.bad:
            parts.append(counted(self.bad, "bad line"))
        if self.unknown_calls:
            parts.append(f"{counted(sum(self.unknown_calls), 'call')} with unknown outcome")
        return ", ".join(parts)

    def progress(self) -> str:
        """Return the number of finished lines, and the number of all lines if it is known."""
        return f"{self.done:,}" if self.total is None else f"{self.done:,}/{self.total:,}"

    def summary(self, nothing: str = "nothing to do") -> list[str]:
        """Return the lines of the summary. `nothing`: the text if no item has finished."""
        ran = self.statuses.total()
        kinds = [f"{number:,} {_WORDS.get(status, status)}" for status, number in sorted(self.statuses.items())]
        lines = [
            f"{counted(ran, 'item')} in {duration(self.seconds)} ({self.rate:,.1f}/s): {', '.join(kinds) or nothing}"
        ]
        if self.before:
            lines.append(f"{counted(self.before, 'item')} done before")
        if self.unknown_calls:
            calls, items = counted(sum(self.unknown_calls), "call"), counted(len(self.unknown_calls), "item")
            lines.append(f"The outcome of {calls} in {items} is unknown; the output has them as unknown_calls")
        usage = self.usage
        lines.append(
            f"{counted(usage.total_tokens, 'token')} ({usage.prompt_tokens:,} in, {usage.completion_tokens:,} out) "
            f"in {counted(usage.requests, 'completion')}{f' for {_dollars(usage.cost)}' if usage.cost else ''}"
        )
        return lines


def _dollars(cost: float) -> str:
    """Return the cost as a text, with at least two significant digits."""
    return f"${cost:,.{max(4, 1 - math.floor(math.log10(cost)))}f}"


def duration(seconds: float) -> str:
    """Return the seconds as a text, such as "8 s", "3 min 5 s" or "2 h 10 min"."""
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{whole} s"
    minutes, seconds_left = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004 - minutes of an hour
        return f"{minutes} min {seconds_left} s"
    return f"{minutes // 60} h {minutes % 60} min"


class Reporter:
    """A printer of plain lines, or of a progress bar with lines above it. It prints problems at once.

    `every`: without a bar, the seconds between two prints of the counts.
    """

    def __init__(
        self, counts: Counts, stream: TextIO, every: float = _SECONDS_BETWEEN, bar: ProgressBar | None = None
    ) -> None:
        self.counts = counts
        self.bar = bar
        self._problems: Counter[str] = Counter()
        self._stream = stream
        self._every = every
        self._next = counts.started + every

    def problem(self, kind: str, text: str) -> None:
        """Print a problem. Only the first problems of each kind are printed."""
        self._problems[kind] += 1
        if self._problems[kind] <= _SHOWN:
            self.print(one_line(text))
        if self._problems[kind] == _SHOWN:
            self.print(f"(further {kind} are counted, but not printed)")

    def print(self, line: str) -> None:
        """Write the line at once."""
        if self.bar is not None:
            self.bar.print(line)
            return
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def update(self) -> None:
        """Move the bar. Without a bar, print the counts, if they were not printed recently. Call it after each change."""
        if self.bar is not None:
            self.bar.update(self.counts.done, f"{self.counts.progress()}  {self.counts.details()}")
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            self.print(f"{self.counts.progress()} done, {self.counts.details()}")


@contextmanager
def reporting(counts: Counts, stream: TextIO, *, bar: bool = True) -> Generator[Reporter]:
    """Report on this stream until the block ends. `bar`: whether a terminal may show a bar; otherwise it gets plain lines."""
    if not (bar and stream.isatty() and find_spec("rich")):
        yield Reporter(counts, stream)
        return
    from aswarm.evals._report import progress_bar  # noqa: PLC0415 - commands without a bar start faster

    with progress_bar(stream, counts.total) as shown:
        reporter = Reporter(counts, stream, bar=shown)
        reporter.update()
        yield reporter
        reporter.update()

"""The progress of a batch: the counts, and how they are printed on stderr, while the batch runs and at its end.

While it runs, a terminal with rich shows a bar. Elsewhere a plain line comes every ten seconds, which suits a log.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

import click

from aswarm._text import counted, one_line
from aswarm._usage import Usage
from aswarm.cli._exits import ExitCode

from ._options import CommandOptions
from ._outcomes import FAILED
from ._rejected import RejectedLines
from ._stopping import Terminated

if TYPE_CHECKING:
    from aswarm.evals._progress import ProgressBar

_SECONDS_BETWEEN = 10.0
_SHOWN = 20  # problems of one kind that are printed; the output has all of them
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
    """The counts of a batch. `total`: the lines of the input, or None if not known. `before`: items that were done before.

    `is_read`: the input has been read to its end. `unknown_calls`: calls with an unknown outcome, in this run of the command
    or before. `items_with_unknown_calls`: the items that have such a call.
    """

    total: int | None = None
    started: float = field(default_factory=time.monotonic)
    statuses: Counter[str] = field(default_factory=Counter[str])
    before: int = 0
    bad: int = 0
    is_read: bool = False
    usage: Usage = field(default_factory=Usage)
    unknown_calls: int = 0
    items_with_unknown_calls: int = 0

    def add_unknown_calls(self, of_an_item: int) -> None:
        """Count the calls of one item that have an unknown outcome; the number may be 0."""
        self.unknown_calls += of_an_item
        self.items_with_unknown_calls += of_an_item > 0

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
        """Items per second, without those that were done before."""
        return self.statuses.total() / max(self.seconds, 1e-6)

    @property
    def left(self) -> float | None:
        """Estimated seconds until the end; None if they cannot be known."""
        if self.total is None or not self.rate:
            return None
        return max(self.total - self.done, 0) / self.rate

    def details(self) -> str:
        """Rate, time left, tokens, failures."""
        parts = [f"{self.rate:,.1f}/s"]
        if self.left is not None:
            parts.append(f"{duration(self.left)} left")
        parts.append(counted(self.usage.total_tokens, "token"))
        parts.append(f"{self.statuses[FAILED]:,} failed")
        if self.bad:
            parts.append(counted(self.bad, "bad line"))
        if self.unknown_calls:
            parts.append(f"{counted(self.unknown_calls, 'call')} with unknown outcome")
        return ", ".join(parts)

    def progress(self) -> str:
        """The number of lines that are done, and of all lines if it is known."""
        return f"{self.done:,}" if self.total is None else f"{self.done:,}/{self.total:,}"

    def summary(self, nothing: str = "nothing to do") -> list[str]:
        """The result, in lines. `nothing`: the text if no item has ended."""
        ran = self.statuses.total()
        kinds = [f"{number:,} {_WORDS.get(status, status)}" for status, number in sorted(self.statuses.items())]
        lines = [
            f"{counted(ran, 'item')} in {duration(self.seconds)} ({self.rate:,.1f}/s): {', '.join(kinds) or nothing}"
        ]
        if self.before:
            lines.append(f"{counted(self.before, 'item')} done before")
        if self.unknown_calls:
            calls, items = counted(self.unknown_calls, "call"), counted(self.items_with_unknown_calls, "item")
            lines.append(f"The outcome of {calls} in {items} is unknown; the output has them as unknown_calls")
        usage = self.usage
        lines.append(
            f"{counted(usage.total_tokens, 'token')} ({usage.prompt_tokens:,} in, {usage.completion_tokens:,} out) "
            f"in {counted(usage.requests, 'completion')}"
        )
        return lines


def duration(seconds: float) -> str:
    """The seconds as a text, such as "8 s", "3 min 5 s" or "2 h 10 min"."""
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004 - seconds of a minute
        return f"{whole} s"
    minutes, seconds_left = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004 - minutes of an hour
        return f"{minutes} min {seconds_left} s"
    return f"{minutes // 60} h {minutes % 60} min"


class Reporter(ABC):
    """Prints what happens while a batch runs."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self._problems: Counter[str] = Counter()

    def problem(self, kind: str, text: str) -> None:
        """Print a problem. Only the first problems of each kind are printed."""
        self._problems[kind] += 1
        if self._problems[kind] <= _SHOWN:
            self.print(one_line(text))
        if self._problems[kind] == _SHOWN:
            self.print(f"(further {kind} are counted, but not printed)")

    @abstractmethod
    def print(self, line: str) -> None:
        """Print a line."""

    @abstractmethod
    def update(self) -> None:
        """Show the counts, which have changed."""


class LineReporter(Reporter):
    """Plain lines. The counts come at most once in `every` seconds."""

    def __init__(self, counts: Counts, stream: TextIO, every: float = _SECONDS_BETWEEN) -> None:
        super().__init__(counts)
        self._stream = stream
        self._every = every
        self._next = counts.started + every

    def print(self, line: str) -> None:
        """Write the line at once."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def update(self) -> None:
        """Write the counts, if the last time is `every` seconds ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            self.print(f"{self.counts.progress()} done, {self.counts.details()}")


class BarReporter(Reporter):
    """A progress bar; lines are printed above it."""

    def __init__(self, counts: Counts, bar: ProgressBar) -> None:
        super().__init__(counts)
        self._bar = bar

    def print(self, line: str) -> None:
        """Print the line above the bar."""
        self._bar.print(line)

    def update(self) -> None:
        """Move the bar."""
        self._bar.update(self.counts.done, f"{self.counts.progress()}  {self.counts.details()}")


@contextmanager
def reporting(counts: Counts, stream: TextIO, *, bar: bool = True) -> Generator[Reporter]:
    """Report on this stream until the block ends. `bar=False`: with plain lines, in a terminal too."""
    if not (bar and stream.isatty() and find_spec("rich")):
        yield LineReporter(counts, stream)
        return
    from aswarm.evals._progress import progress_bar  # noqa: PLC0415 - commands without a bar start faster

    with progress_bar(stream, counts.total) as shown:
        reporter = BarReporter(counts, shown)
        reporter.update()
        yield reporter
        reporter.update()


class Summary:
    """Around a batch: prints the result at its end; after Ctrl-C, SIGTERM or an error also how to continue."""

    def __init__(self, options: CommandOptions, counts: Counts, rejected: RejectedLines, stderr: TextIO) -> None:
        self._options = options
        self._counts = counts
        self._rejected = rejected
        self._stderr = stderr

    def __enter__(self) -> None:
        """Print nothing yet."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._rejected.close()
        is_interrupted = isinstance(error, KeyboardInterrupt)
        if error is None:
            self._print("nothing to do", *self._stopped_by_a_failure())
        elif is_interrupted or self._counts.statuses:
            self._print("no item has ended", f"Stopped. {self._options.resume_hint()}")
        if is_interrupted:
            raise click.exceptions.Exit(ExitCode.TERMINATED if isinstance(error, Terminated) else ExitCode.INTERRUPTED)

    def _stopped_by_a_failure(self) -> list[str]:
        counts = self._counts
        left = None if counts.total is None else counts.total - counts.done
        if self._options.on_error != "stop" or not counts.statuses[FAILED] or counts.is_read or left == 0:
            return []
        not_started = "" if left is None else f", {counted(left, 'line')} not started"
        return [f"Stopped: an item failed{not_started}. {self._options.resume_hint()}"]

    def _print(self, nothing: str, *more: str) -> None:
        lines = [*self._counts.summary(nothing), *more]
        if self._rejected.count:
            lines.insert(1, f"{counted(self._rejected.count, 'line')} rejected; see {self._rejected.path}")
        if self._options.output != "-":
            lines.append(f"Outcomes are in {self._options.output}")
        for line in lines:
            click.echo(line, file=self._stderr)

"""The result of an evaluation: the attempts, their counts for each case and for all cases, as a table and as plain data.

The accuracy is passed attempts / all attempts, 0.0 to 1.0. An attempt with an error (the provider failed, or the judge gave no
verdict) has not passed. A terminal shows the progress as a bar of rich, or as a line that is overwritten.
"""

from __future__ import annotations

import bisect
import sys
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeAlias

from aswarm._values.agent import StopReason
from aswarm._values.json import shown
from aswarm._values.messages import Message
from aswarm._values.text import counted
from aswarm._values.usage import Usage

from ._case import Case, CaseCall

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


EvalResult: TypeAlias = Literal["passed", "failed", "error"]
"""The end of an attempt. "passed": all expectations were met. "failed": not all were met. "error": an exception was raised."""
_STOPS = {
    "budget": "was stopped by its budget",
    "max_turns": "was stopped by max_turns",
    "waiting": "waits for a decision",
}
_ANSWER = 200  # characters of an answer that a line shows


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of one case.

    Args:
        number: The number of the repeat, from 1.
        outcome: "passed", "failed" or "error".
        reason: The expectation that failed, the text of the error, or the judge's reason.
        calls: The calls of the model until the end of the run, or until the error.
        text: The answer of the model.
        messages: The messages of the run.
        stop: The reason why the run stopped.
        usage: The tokens of the run and of the judge.
    """

    number: int
    outcome: EvalResult
    reason: str = ""
    calls: tuple[CaseCall, ...] = ()
    text: str = ""
    messages: tuple[Message, ...] = ()
    stop: StopReason = "answer"
    usage: Usage = field(default_factory=Usage)

    @property
    def did(self) -> str:
        """The calls and the answer of the model, on one line. Empty if the model made no completion."""
        parts = [f"called {', '.join(map(str, self.calls))}"] if self.calls else []
        if self.text:
            parts.append(f"answered {shown(' '.join(self.text.split()), _ANSWER)}")
        if self.stop in _STOPS:
            parts.append(_STOPS[self.stop])
        return ", ".join(parts) or ("said nothing" if self.messages else "")

    def __str__(self) -> str:
        """Return the outcome, the reason, and the calls and the answer of the model."""
        parts = [self.reason, self.did and f"the model {self.did}"]
        return f"{self.outcome}: {'; '.join(part for part in parts if part)}"


class _AttemptCounts(ABC):
    """Base class of the reports: counts over attempts."""

    @abstractmethod
    def _attempts(self) -> Iterator[Attempt]: ...

    def _count(self, outcome: EvalResult) -> int:
        return sum(attempt.outcome == outcome for attempt in self._attempts())

    @property
    def total(self) -> int:
        """The number of attempts."""
        return sum(1 for _ in self._attempts())

    @property
    def passed(self) -> int:
        """The number of attempts that met all expectations."""
        return self._count("passed")

    @property
    def errors(self) -> int:
        """The number of attempts without a result: the provider failed, the judge gave no verdict, or the check raised."""
        return self._count("error")

    @property
    def accuracy(self) -> float:
        """`passed` / `total`, 0.0 to 1.0; 0.0 without attempts."""
        return self.passed / self.total if self.total else 0.0


@dataclass
class CaseReport(_AttemptCounts):
    """One case and its attempts, in the order of their numbers. Interrupted attempts are not in the list.

    `agent`, `model`: the names of the agent and of the model; empty if no agent runs.
    """

    case: Case
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    agent: str = ""
    model: str = ""

    def _attempts(self) -> Iterator[Attempt]:
        return iter(self.attempts)

    def add(self, attempt: Attempt) -> None:
        """Insert an attempt in the order of the numbers."""
        bisect.insort(self.attempts, attempt, key=lambda other: other.number)

    def __str__(self) -> str:
        """Return the line of the table, and then a line for each kind of failure, the most frequent first."""
        wrong = Counter(str(attempt) for attempt in self.attempts if attempt.outcome != "passed")
        line = f"{f'{self.passed}/{self.total}':>7} {self.accuracy:>8.1%}  {self.case}"
        return "\n".join([line, *(f"{'':18}{count}x {text}" for text, count in wrong.most_common())])


@dataclass
class Report(_AttemptCounts):
    """All cases of one evaluation. `str(report)` is a table.

    Args:
        cases: The cases with their attempts.
        interrupted: Whether attempts are missing, because the evaluation was cancelled.
        id: A new UUID.
        timestamp: The start of the evaluation, in ISO 8601 with the offset from UTC.
    """

    cases: list[CaseReport]
    interrupted: bool = False
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    timestamp: str = field(default_factory=lambda: datetime.now().astimezone().isoformat(timespec="seconds"))

    def _attempts(self) -> Iterator[Attempt]:
        return (attempt for case in self.cases for attempt in case.attempts)

    @property
    def usage(self) -> Usage:
        """The tokens of all attempts, including the tokens of the judge."""
        return sum((attempt.usage for attempt in self._attempts()), Usage())

    def __str__(self) -> str:
        """Return a table with the accuracy and the failures of each case. The last line has the sums."""
        head = f"{'passed':>7} {'accuracy':>8}  case"
        errors = f", {counted(self.errors, 'error')}" if self.errors else ""
        stopped = " (interrupted)" if self.interrupted else ""
        last = f"{f'{self.passed}/{self.total}':>7} {self.accuracy:>8.1%}  all{errors}{stopped}"
        return "\n".join([head, *map(str, self.cases), last])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with Swarm's keys. The key "attempts" of a case has the details of its attempts."""
        return {
            "id": self.id,
            "timestamp": self.timestamp,
            "interrupted": self.interrupted,
            "results": [_case_record(case) for case in self.cases],
            "correct_evals": self.passed,
            "error_evals": self.errors,
            "total_evals": self.total,
            "overall_accuracy_percent": f"{self.accuracy:.2%}",
            "usage": asdict(self.usage),
        }


def _case_record(report: CaseReport) -> dict[str, Any]:
    case = report.case
    expected = {"function": "None" if case.calls_nothing else case.function} if case.function is not ... else {}
    more = {"arguments": case.arguments, "output": case.output, "judge": case.judge, "check": case.check}
    return {
        "name": str(case),
        "agent": report.agent,
        "model": report.model,
        "messages": case.messages,
        **{f"expected_{key}": value for key, value in expected.items()},
        **{key: value for key, value in more.items() if value is not None},
        "actual_function": [attempt.calls[0].name if attempt.calls else "None" for attempt in report.attempts],
        "actual_message": [attempt.text or "None" for attempt in report.attempts],
        "case_accuracy": f"{report.accuracy:.2%}",
        "attempts": [asdict(attempt) for attempt in report.attempts],
    }


class ProgressBar:
    """A bar with a text beside it."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def update(self, done: int, text: str) -> None:
        """Move the bar to `done` of its total, and change the text."""
        self._progress.update(self._task, completed=done, description=text)

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bar(stream: TextIO, total: int | None) -> Generator[ProgressBar]:
    """Show a bar of rich on this stream until the block ends. `total`: the value of a full bar, or None if it is not known."""
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (BarColumn(20), TextColumn("{task.description}", markup=False))
    # If stdout is the terminal, output of tools would damage the bar, so rich prints it above the bar. If stdout is a file, the
    # file must get this output.
    redirect = sys.stdout.isatty()
    with Progress(*columns, console=Console(file=stream), refresh_per_second=4, redirect_stdout=redirect) as progress:
        yield ProgressBar(progress, progress.add_task("", total=total))


@contextmanager
def progress_on(stream: TextIO | None, total: int) -> Generator[Callable[[Attempt], None]]:
    """Yield a function that counts an attempt, and shows the counts if the stream is a terminal."""
    if stream is None or not stream.isatty():
        yield lambda _: None
        return
    outcomes: Counter[str] = Counter()
    with progress_bar(stream, total) if find_spec("rich") else nullcontext() as bar:

        def show(attempt: Attempt) -> None:
            outcomes[attempt.outcome] += 1
            text = f"{outcomes.total()}/{total}, {outcomes['passed']} passed"
            if bar is None:
                print(end=f"\r{text}", file=stream, flush=True)
            else:
                bar.update(outcomes.total(), text)

        try:
            yield show
        finally:
            if bar is None:
                print(file=stream)

"""The progress of an evaluation in a terminal: a bar of rich, or a line that is overwritten. `aswarm batch` also uses the bar."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from typing import TYPE_CHECKING, TextIO

from ._report import Attempt

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


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

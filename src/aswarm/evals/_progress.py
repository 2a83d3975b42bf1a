"""How far an evaluation is, shown in a terminal: a bar by rich, or a line that is written over.

The bar is that of `aswarm batch` too, which counts differently.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
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


class ProgressLine:
    """A line of text that each update writes over."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def update(self, _: int, text: str) -> None:
        """Change the text."""
        self._stream.write(f"\r{text}")
        self._stream.flush()


@contextmanager
def progress_bar(stream: TextIO, total: int | None) -> Generator[ProgressBar]:
    """A bar on this stream until the block ends. `total` is None where it is not known. Needs rich."""
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.progress import BarColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (BarColumn(20), TextColumn("{task.description}", markup=False))
    # What tools print would tear the bar apart, so it goes above the bar; but only if stdout is the terminal.
    redirect = sys.stdout.isatty()
    with Progress(*columns, console=Console(file=stream), refresh_per_second=4, redirect_stdout=redirect) as progress:
        yield ProgressBar(progress, progress.add_task("", total=total))


@contextmanager
def progress_line(stream: TextIO, _: int | None = None) -> Generator[ProgressLine]:
    """A line on this stream that ends with the block. Needs no extra."""
    try:
        yield ProgressLine(stream)
    finally:
        stream.write("\n")


@contextmanager
def progress_on(stream: TextIO | None, total: int) -> Generator[Callable[[Attempt], None]]:
    """A function that counts an attempt and shows the counts on a terminal; elsewhere it shows nothing."""
    if stream is None or not stream.isatty():
        yield lambda _: None
        return
    outcomes: Counter[str] = Counter()
    with (progress_bar if find_spec("rich") else progress_line)(stream, total) as progress:

        def show(attempt: Attempt) -> None:
            outcomes[attempt.outcome] += 1
            done = outcomes.total()
            progress.update(done, f"{done}/{total}, {outcomes['passed']} passed")

        yield show

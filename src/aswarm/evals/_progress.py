"""How far an evaluation is, on a terminal: rich's bar where rich is installed, a line that counts where it is not.

Writes nothing where there is no stream, or where it is no terminal.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TextIO

from ._report import Attempt


@contextmanager
def progress_on(stream: TextIO | None, total: int) -> Generator[Callable[[Attempt], None]]:
    """A function that is told each attempt; what is shown ends with the block."""
    if stream is None or not stream.isatty():
        yield lambda _: None
        return
    outcomes: Counter[str] = Counter()
    show = _bar if find_spec("rich") else _line
    with show(stream, total) as update:

        def tell(attempt: Attempt) -> None:
            outcomes[attempt.outcome] += 1
            update(outcomes.total(), f"{outcomes['passed']} passed")

        yield tell


@contextmanager
def _bar(stream: TextIO, total: int) -> Generator[Callable[[int, str], None]]:
    from rich.console import Console  # noqa: PLC0415 - an extra
    from rich.progress import Progress  # noqa: PLC0415

    columns = Progress.get_default_columns()
    # What tools print goes above the bar, but only where it is the terminal that it goes to.
    with Progress(*columns, console=Console(file=stream), redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("evaluating", total=total)
        yield lambda done, words: bar.update(task, completed=done, description=f"{done}/{total}, {words}")


@contextmanager
def _line(stream: TextIO, total: int) -> Generator[Callable[[int, str], None]]:
    def update(done: int, words: str) -> None:
        stream.write(f"\r{done}/{total}, {words}")
        stream.flush()

    try:
        yield update
    finally:
        stream.write("\n")

"""What goes to stdout, and what to stderr.

stdout gets only the result of the command. What functions print goes to stderr: a script that reads stdout could not tell
it from the result.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

from aswarm._text import clean


@contextmanager
def reserve_stdout() -> Generator[TextIO]:
    """Stdout for the command itself; inside the block, everything else that is printed goes to stderr."""
    stdout = sys.stdout
    with redirect_stdout(sys.stderr):
        yield stdout


def write(stream: TextIO, text: str) -> None:
    """Write and flush. A terminal gets the text without control characters: a model could send it commands."""
    stream.write(clean(text) if stream.isatty() else text)
    stream.flush()

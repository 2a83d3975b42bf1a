"""What goes to stdout and what goes to stderr.

stdout has only what the command is for. What functions print goes to stderr: a script that reads the answer would not
know it from the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

from aswarm._text import OBEYED


@contextmanager
def own_stdout() -> Generator[TextIO]:
    """Stdout for the command itself; inside the block, what anybody else prints goes to stderr."""
    stdout = sys.stdout
    with redirect_stdout(sys.stderr):
        yield stdout


def write(stream: TextIO, text: str) -> None:
    """Write at once. In a terminal without control characters: a model could write commands for the terminal."""
    stream.write(harmless(text) if stream.isatty() else text)
    stream.flush()


def harmless(text: str) -> str:
    """The text without control characters, but for the line break and the tabulator."""
    return text.translate(_NOTHING)


_NOTHING = dict.fromkeys(OBEYED)


def clipped(text: str, limit: int = 300) -> str:
    """The text on one harmless line of at most `limit` characters."""
    line = harmless(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 3] + "..."

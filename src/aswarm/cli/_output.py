"""Writing to stdout and stderr.

stdout gets only the result of the command. The output of functions goes to stderr, so that a script can read the result.
"""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

import click

from aswarm._values.agent import Response
from aswarm._values.errors import AswarmError
from aswarm._values.json import jsonable
from aswarm._values.text import clean

from ._exits import CommandFailed, discard

STDOUT = "standard output"


@contextmanager
def reserve_stdout() -> Generator[TextIO]:
    """Yield stdout for the command itself. Inside the block, all other output goes to stderr."""
    stdout = sys.stdout
    with redirect_stdout(sys.stderr):
        yield stdout


def output_of(response: Response) -> Any:
    """Return the typed answer of a run as JSON data; None without a typed answer."""
    try:
        return jsonable(response.output)
    except AswarmError:
        return None


class _NotesHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"Note: {clean(self.format(record))}", err=True)


@contextmanager
def log_as_notes() -> Generator[None]:
    """Print the warnings that aswarm logs, inside the block, as notes on stderr."""
    logger, handler = logging.getLogger("aswarm"), _NotesHandler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def write(stream: TextIO, text: str) -> None:
    """Write and flush. A terminal gets the text without control characters, because a model could send commands to the terminal."""
    with writing(stream):
        stream.write(clean(text) if stream.isatty() else text)
        stream.flush()


@contextmanager
def writing(place: object, kind: type[OSError] = OSError) -> Generator[None]:
    """Enclose writing to stdout, or to a file with this name. A write error, such as a full disk, becomes CommandFailed.

    `exits` handles a broken pipe. `kind`: the class of the write errors, for a block that does more than write.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except kind as error:
        if isinstance(place, io.TextIOBase):
            discard(place)
            place = STDOUT
        raise CommandFailed(f"{place} cannot be written: {error.strerror or error}") from error

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
    """Yield stdout for the result of the command. Inside the block, `print` writes to stderr."""
    stdout = sys.stdout
    with redirect_stdout(sys.stderr):
        yield stdout


def output_of(response: Response) -> Any:
    """Return the typed answer of a run as JSON data, or None if there is no typed answer."""
    try:
        return jsonable(response.output)
    except AswarmError:
        return None


def details_of(error: BaseException) -> dict[str, Any]:
    """Return `status_code` and `retryable` of an error of the provider; nothing for another error."""
    return {name: getattr(error, name) for name in ("status_code", "retryable") if hasattr(error, name)}


class _NotesHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"Note: {clean(self.format(record))}", err=True)


@contextmanager
def log_as_notes() -> Generator[None]:
    """Inside the block, print the warnings in the log of aswarm to stderr, as notes."""
    logger, handler = logging.getLogger("aswarm"), _NotesHandler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def write(stream: TextIO, text: str) -> None:
    """Write the text and flush. For a terminal, remove control characters: with these, a model could control the terminal."""
    with writing(stream):
        stream.write(clean(text) if stream.isatty() else text)
        stream.flush()


@contextmanager
def writing(place: object, kind: type[OSError] = OSError) -> Generator[None]:
    """Turn a write error of the block, such as a full disk, into CommandFailed. `place`: stdout, or the name of a file.

    A broken pipe stays an exception, which `exits` handles. `kind`: the class of write errors, if the block may also raise
    another OSError.
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

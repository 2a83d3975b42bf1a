"""What goes to stdout, and what to stderr.

stdout gets only the result of the command. The output of functions goes to stderr: a script that reads stdout could not tell
it from the result.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

import click

from aswarm._agent import Response
from aswarm._errors import AswarmError
from aswarm._json import jsonable
from aswarm._text import clean

from ._exits import CommandFailed, discard

STDOUT = "standard output"


@contextmanager
def reserve_stdout() -> Generator[TextIO]:
    """Stdout for the command itself. Inside the block, all other output goes to stderr."""
    stdout = sys.stdout
    with redirect_stdout(sys.stderr):
        yield stdout


def output_of(response: Response) -> Any:
    """The answer of a run with an output type, as JSON data; None if there is no such answer."""
    try:
        return jsonable(response.output)
    except AswarmError:
        return None


class _NotesHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"Note: {clean(self.format(record))}", err=True)


@contextmanager
def log_as_notes() -> Generator[None]:
    """Inside the block, the warnings that aswarm logs are notes on stderr."""
    logger, handler = logging.getLogger("aswarm"), _NotesHandler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def write(stream: TextIO, text: str) -> None:
    """Write and flush. A terminal gets the text without control characters, because a model could send commands to it."""
    with writing(stream):
        stream.write(clean(text) if stream.isatty() else text)
        stream.flush()


@contextmanager
def writing(stdout: TextIO, kind: type[OSError] = OSError) -> Generator[None]:
    """Around writing to stdout: an error, such as a full disk, ends the command. `exits` handles a broken pipe.

    `kind`: the class of the errors of writing, for a block that does more than write.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except kind as error:
        discard(stdout)
        raise cannot_write(STDOUT, error) from error


def cannot_write(name: object, error: OSError) -> CommandFailed:
    """The error of a command that could not write its result."""
    return CommandFailed(f"{name} cannot be written: {error.strerror or error}")

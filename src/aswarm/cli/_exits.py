"""The end of a command: the exit codes. `exits` turns an error into a line on stderr and an exit code."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Self, TextIO

import click

from aswarm._values.errors import AswarmError, ConfigurationError
from aswarm._values.text import clean, one_line


class ExitCode(IntEnum):
    """The exit codes of all commands. `--help` shows this table, and a test compares the documentation with it."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    # A code above 128 is 128 plus the number of the signal, as shells report it: SIGINT 2, SIGPIPE 13, SIGTERM 15.
    DONE = 0, "success"
    FAILED = 1, "failure: the reason is on stderr"
    USAGE = 2, "usage or configuration error"
    NO_ANSWER = 3, "no answer: a call waits for a decision, --max-turns or --budget was reached, or the model refused"
    BELOW_THRESHOLD = 4, "the evals are below --threshold"
    UNKNOWN_CALLS = 5, "nothing failed, but the outcome of a tool call is unknown"
    INTERRUPTED = 130, "interrupted by Ctrl-C"
    BROKEN_PIPE = 141, "broken pipe: the reader of the output has closed it"
    TERMINATED = 143, "terminated by SIGTERM"


TRACEBACK = "aswarm.traceback"  # the key of `--traceback` in click's context


class SetupError(click.ClickException):
    """A usage or configuration error: the command did not run. The text has the remedy."""

    exit_code = ExitCode.USAGE


class CommandFailed(click.ClickException):
    """The command ran and failed."""

    exit_code = ExitCode.FAILED


@contextmanager
def exits(context: click.Context | None = None) -> Generator[None]:
    """Turn an exception of the block into a line on stderr and an exit code.

    If the command line of `context` has `--traceback`, the traceback is printed before the line.
    """
    try:
        with _click_exceptions():
            yield
    except click.ClickException as error:
        if error.__cause__ is not None and context is not None and context.meta.get(TRACEBACK):
            click.echo(clean("".join(traceback.format_exception(error.__cause__))), err=True, nl=False)
        raise


@contextmanager
def _click_exceptions() -> Generator[None]:
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except ConfigurationError as error:
        raise SetupError(clean(str(error))) from error
    except AswarmError as error:
        raise CommandFailed(clean(str(error))) from error
    except BrokenPipeError:
        discard(sys.stdout)
        raise click.exceptions.Exit(ExitCode.BROKEN_PIPE) from None
    except KeyboardInterrupt:
        click.echo(err=True)  # ends the line, because the terminal has written ^C
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
    except Exception as error:
        text = f"{type(error).__name__}: {one_line(error, 1000)}"
        raise CommandFailed(f"{text} (--traceback prints the traceback too)") from error


def discard(stdout: TextIO | io.TextIOBase) -> None:
    """Send the buffered output to the null device. Otherwise Python would flush it at exit, and report the write error again."""
    with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:  # in a test, stdout has no file number
        os.dup2(nowhere.fileno(), stdout.fileno())

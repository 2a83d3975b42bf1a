"""How a command ends: the exit codes, and how errors become a line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import Self

import click

from aswarm._errors import AswarmError, ConfigurationError
from aswarm._text import clean


class ExitCode(IntEnum):
    """The exit codes of all commands. `--help` is made from this table; the documentation is tested against it."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        """A number that knows its meaning."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "success: the model answered (batch: every item)"
    FAILED = 1, "the run failed (batch: an item failed, or a line was rejected)"
    USAGE = 2, "usage or configuration error"
    NO_ANSWER = 3, "no answer: --max-turns was reached, or the model refused"
    BELOW_THRESHOLD = 4, "the evals are below --threshold"
    INTERRUPTED = 130, "interrupted by Ctrl-C"
    BROKEN_PIPE = 141, "broken pipe: the reader of the output has closed it"
    TERMINATED = 143, "terminated by SIGTERM"


HELP = "\b\nExit codes:\n" + "".join(f"  {code:<3}  {code.meaning}\n" for code in ExitCode)


class SetupError(click.ClickException):
    """A usage or configuration error: the command cannot run as it was given. The text says what to change."""

    exit_code = ExitCode.USAGE


class CommandFailed(click.ClickException):
    """The command ran and failed."""

    exit_code = ExitCode.FAILED


@contextmanager
def exits() -> Generator[None]:
    """Turn what the command in the block raises into a line on stderr and an exit code."""
    try:
        yield
    except ConfigurationError as error:
        raise SetupError(clean(str(error))) from error
    except AswarmError as error:
        raise CommandFailed(clean(str(error))) from error
    except BrokenPipeError:
        _discard_stdout()
        raise click.exceptions.Exit(ExitCode.BROKEN_PIPE) from None
    except KeyboardInterrupt:
        click.echo(err=True)  # the terminal has written ^C
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None


def _discard_stdout() -> None:
    """Send the buffered rest to the null device: Python flushes stdout at its end, and would report the broken pipe."""
    with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:  # in a test, stdout is no file
        os.dup2(nowhere.fileno(), sys.stdout.fileno())

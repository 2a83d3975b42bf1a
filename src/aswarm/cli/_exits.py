"""How a command ends: the exit codes, and what is said of an error. Decides no more than that."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path

import click

from aswarm._errors import AswarmError, ConfigurationError

from ._output import harmless


class Code(IntEnum):
    """The exit codes; the table is in the docstring of `aswarm.cli`."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_ANSWER = 3
    BELOW_THRESHOLD = 4
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


HELP = """\b
Exit codes:
  0    done: the model answered (batch: every item)
  1    the run failed (batch: an item did, or a line is bad)
  2    the command, the agent, or what is installed is to be mended
  3    the run ended without an answer (--max-turns, a refusal)
  4    evals below the threshold
  130  Ctrl-C
  141  whoever read the output has gone
  143  SIGTERM
"""


class Mistake(click.ClickException):
    """Something to be mended before it can run; the text says what to do."""

    exit_code = Code.USAGE


class Failure(click.ClickException):
    """The run failed."""

    exit_code = Code.FAILED


@contextmanager
def exits() -> Generator[None]:
    """Around a command: what it raises becomes a line on stderr and an exit code."""
    try:
        yield
    except ConfigurationError as error:
        raise Mistake(harmless(str(error))) from error
    except AswarmError as error:
        raise Failure(harmless(str(error))) from error
    except BrokenPipeError:
        _let_go_of_stdout()
        raise click.exceptions.Exit(Code.BROKEN_PIPE) from None
    except KeyboardInterrupt:
        click.echo(err=True)  # the terminal has written ^C
        raise click.exceptions.Exit(Code.INTERRUPTED) from None


def _let_go_of_stdout() -> None:
    """At its end Python writes what is still in the buffer; nobody would read it, and Python would complain."""
    with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:  # in a test, stdout is no file
        os.dup2(nowhere.fileno(), sys.stdout.fileno())

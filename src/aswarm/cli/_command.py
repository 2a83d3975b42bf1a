"""The common parts of all commands: stdout and stderr, the exit codes, the exit codes in `--help`, and the option `--traceback`.

stdout gets only the result of the command. The output of functions goes to stderr, so that a script can read the result.

`exits` turns an error into a line on stderr and an exit code.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stdout, suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, Self, TextIO

import click

from aswarm._values.agent import Response
from aswarm._values.errors import AswarmError, ConfigurationError
from aswarm._values.json import jsonable
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


_COMMON = {ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE, ExitCode.INTERRUPTED, ExitCode.BROKEN_PIPE}


class AppCommand(click.Command):
    """A command of click. If its help cannot be written, this becomes an exit code, as for any other result."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Parse the command line. During this, `--help` and `--version` write to stdout."""
        with writing(sys.stdout):
            return super().make_context(*args, **options)


def _keep(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[TRACEBACK] = value


_traceback_option = click.option(
    "--traceback", is_flag=True, expose_value=False, callback=_keep, help="After an error, print the traceback too."
)


def command(name: str, *codes: ExitCode, text: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator that makes a function a command.

    `codes`: the exit codes in addition to the common ones. `text`: the help.
    """

    def make(function: Callable[..., Any]) -> click.Command:
        return _traceback_option(click.command(name, cls=AppCommand, help=text, epilog=help_of(*codes))(function))

    return make


def help_of(*codes: ExitCode) -> str:
    """Return the text of `--help` about these exit codes and the common exit codes."""
    shown = (f"  {code:<3}  {code.meaning}\n" for code in ExitCode if code in _COMMON.union(codes))
    return "\b\nExit codes:\n" + "".join(shown)

"""The common parts of all commands: the exit codes in `--help`, and the option `--traceback`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from ._exits import TRACEBACK, ExitCode
from ._output import writing

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

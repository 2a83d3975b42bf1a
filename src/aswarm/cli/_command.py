"""The parts that every command has: its own exit codes in `--help`, and the option `--traceback`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from ._exits import TRACEBACK, ExitCode
from ._output import writing

_COMMON = {ExitCode.DONE, ExitCode.FAILED, ExitCode.USAGE, ExitCode.INTERRUPTED, ExitCode.BROKEN_PIPE}


class AppCommand(click.Command):
    """A command of click. Its help is written in the same way as every other result."""

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Parse the command line; `--help` and `--version` write to stdout here."""
        with writing(sys.stdout):
            return super().make_context(*args, **options)


def command(name: str, *codes: ExitCode, text: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a function a command. `codes`: the exit codes that it has besides the common ones. `text`: its help."""

    def make(function: Callable[..., Any]) -> click.Command:
        made = click.command(name, cls=AppCommand, help=text, epilog=help_of(*codes))(function)
        help_text = "After an error, print the traceback too."
        made.params.append(
            click.Option(["--traceback"], is_flag=True, expose_value=False, callback=_keep, help=help_text)
        )
        return made

    return make


def help_of(*codes: ExitCode) -> str:
    """The common exit codes and these, as `--help` shows them."""
    shown = (f"  {code:<3}  {code.meaning}\n" for code in ExitCode if code in _COMMON.union(codes))
    return "\b\nExit codes:\n" + "".join(shown)


def _keep(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[TRACEBACK] = value

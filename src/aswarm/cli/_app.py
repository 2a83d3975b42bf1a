"""The group of all commands. A new command needs a module in `commands`, and its name in the list below."""

from __future__ import annotations

from typing import Any

import click

from aswarm import __version__

from ._command import AppCommand, ExitCode, exits, help_of
from .commands.batch.command import batch
from .commands.chat import chat
from .commands.demo import demo
from .commands.eval import evals
from .commands.graph import graph
from .commands.mcp import mcp
from .commands.run import run
from .commands.runs import runs, worker
from .commands.serve import serve


class _App(AppCommand, click.Group):
    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with exits():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with exits(ctx):
            return super().invoke(ctx)


app = _App(
    help="aswarm: agents that hand off to each other.\n\n`aswarm demo` shows an example, and needs no API key. `aswarm COMMAND "
    "--help` explains a command. A command that asks a model needs the environment variable OPENAI_API_KEY, or OPENAI_BASE_URL "
    "for your own server.",
    epilog=help_of(*ExitCode),
    context_settings={"help_option_names": ["-h", "--help"]},
    commands=[run, chat, batch, graph, evals, serve, mcp, worker, runs, demo],
)
click.version_option(__version__, prog_name="aswarm", message="%(prog)s %(version)s")(app)

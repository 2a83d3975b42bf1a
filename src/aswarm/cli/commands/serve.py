"""`aswarm serve`: agents over HTTP, with a playground.

Security: `aswarm serve` listens for other machines only with a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from aswarm._swarm import AsyncSwarm
from aswarm.cli._command import command
from aswarm.cli._load import load_agent
from aswarm.cli._options import AGENT_HELP, mcp_option, provider_options, skills_option
from aswarm.cli._server import LOOPBACK, port_option, serve_until_stopped
from aswarm.extensions import AgentDirectory

if TYPE_CHECKING:
    from aswarm._values.settings import ApiName


@command(
    "serve",
    text=f"Serve AGENTs over HTTP, with a playground.\n\n{AGENT_HELP} A conversation starts with the first AGENT, which "
    "also gets the tools of --mcp and --skills. Without --host, only this machine can reach the server. The playground shows everything: "
    "instructions, context variables and errors. Needs the extra serve.",
)
@click.argument("agent", nargs=-1)
@click.option(
    "--open",
    "file",
    metavar="FILE",
    help="Show the runs of a file in the playground, such as the file of a failed simulation. With --open, no AGENT is needed.",
)
@click.option("--host", metavar="ADDRESS", default=LOOPBACK, show_default=True, help="The address to listen at.")
@port_option("The port to listen at; 0 for any free port.", 8000)
@click.option(
    "--token",
    metavar="TOKEN",
    envvar="ASWARM_TOKEN",
    help="The bearer token that each request must have. A --host that other machines can reach needs a token. Other users of "
    "this machine can read the command line, so set the environment variable ASWARM_TOKEN instead.",
)
@click.option(
    "--store",
    metavar="FILE|URL",
    help="A SQLite file for the conversations. Or, for durable runs (another process can continue them), the URL of a "
    "database: sqlite:///runs.db or postgresql://user@host/database. [default: memory]",
)
@click.option(
    "--code-version", metavar="TEXT", help="For durable runs: the version of the agents' code, such as a date."
)
@mcp_option
@skills_option
@provider_options
def serve(agent: tuple[str, ...], file: str | None, model: str | None, api: ApiName, **options: Any) -> None:
    """Serve until Ctrl-C."""
    agents = [load_agent(target) for target in agent]
    if file is None and not agents:
        raise click.UsageError("Missing argument 'AGENT...'.")
    if model is not None:  # the page shows the model too
        for served in agents:
            for reached in AgentDirectory([served]).reached:
                reached.model = model
    if file is None:
        serve_until_stopped(AsyncSwarm(model=model, api=api), agents, **options)
        return
    from aswarm.cli._opened import read_logs, shown_agents, shown_swarm  # noqa: PLC0415 - rare

    logs = read_logs(file)
    swarm = AsyncSwarm(model=model, api=api) if agents else shown_swarm()
    serve_until_stopped(swarm, agents or shown_agents(logs), logs=logs, **options)

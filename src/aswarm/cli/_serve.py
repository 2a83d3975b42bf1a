"""`aswarm serve`: agents on the web, with a page to try them."""

from __future__ import annotations

import click

from ._command import command
from ._load import load_agent
from ._mcp_servers import mcp_option
from ._options import AGENT_HELP, base_url_option, provider
from ._server import serve_until_stopped, server_options


@command(
    "serve",
    text=f"Serve AGENTs on the web, with a page to try them.\n\n{AGENT_HELP} A conversation begins with the first AGENT, which "
    "also gets the tools of --mcp. Only this machine can reach the server, unless there is a --host. The page shows everything: "
    "instructions, context variables and errors. Needs the extra serve.",
)
@click.argument("agent", nargs=-1, required=True)
@server_options
@mcp_option
@base_url_option
def serve(
    agent: tuple[str, ...],
    host: str,
    port: int,
    token: str | None,
    store: str | None,
    code_version: str | None,
    servers: tuple[str, ...],
    base_url: str | None,
) -> None:
    """Serve until Ctrl-C."""
    from aswarm._swarm import AsyncSwarm  # noqa: PLC0415 - only once it is needed

    agents = [load_agent(target) for target in agent]
    with provider(base_url):
        serve_until_stopped(
            AsyncSwarm(),
            agents,
            host=host,
            port=port,
            token=token,
            store=store,
            code_version=code_version,
            servers=servers,
        )

"""`aswarm mcp`: agents as a server of the Model Context Protocol, over stdio or HTTP."""

from __future__ import annotations

import signal
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import anyio
import click

from aswarm._swarm import AsyncSwarm
from aswarm.cli._command import command
from aswarm.cli._load import load_agent
from aswarm.cli._options import AGENT_HELP, max_turns_option, provider_options
from aswarm.cli._server import LOOPBACK, listening, port_option, shown_address

if TYPE_CHECKING:
    from mcp.server import Server

    from aswarm._values.agent import Agent
    from aswarm._values.settings import ApiName


@command(
    "mcp",
    text="Serve AGENT to programs that speak MCP.\n\nThe server has one tool for AGENT, and one for each agent in its "
    f"functions, and in theirs. {AGENT_HELP} The program starts this command, and uses its stdin and stdout; the output of functions "
    "goes to stderr. With --port, the command serves streamable HTTP at http://127.0.0.1:N/mcp, for this machine only. Needs "
    "the extra mcp.",
)
@click.argument("agent")
@provider_options
@max_turns_option
@port_option("Serve HTTP at this port, instead of stdin and stdout; 0 for any free port.")
def mcp(agent: str, model: str | None, api: ApiName, max_turns: int, port: int | None) -> None:
    """Serve the agents."""
    anyio.run(_serve, load_agent(agent), model, api, max_turns, port)


async def _serve(agent: Agent, model: str | None, api: ApiName, max_turns: int, port: int | None) -> None:
    from aswarm.mcp import serve_agents  # noqa: PLC0415 - only once it is needed

    async with AsyncSwarm(api=api) as swarm:
        server = serve_agents(swarm, agents=agent, max_turns=max_turns, model_override=model)
        await (_over_stdio(server) if port is None else _over_http(server, port))


async def _over_stdio(server: Server) -> None:
    from mcp.server.stdio import stdio_server  # noqa: PLC0415 - as above

    async with stdio_server() as (read, write):
        # Ctrl-C must end the process at once, because the SDK reads stdin in a thread that a cancellation does not wake.
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            with redirect_stdout(sys.stderr):
                await server.run(read, write, server.create_initialization_options())
        finally:
            signal.signal(signal.SIGINT, before)


async def _over_http(server: Server, port: int) -> None:
    import uvicorn  # noqa: PLC0415 - as above

    with listening(LOOPBACK, port) as listener:
        click.echo(f"http://{shown_address(listener)}/mcp (Ctrl-C ends it)", err=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="warning", lifespan="on")
        await uvicorn.Server(config).serve([listener])

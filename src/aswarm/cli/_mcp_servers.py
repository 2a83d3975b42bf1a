"""The option `--mcp`: servers of the Model Context Protocol whose tools a command adds to its agent, for as long as it runs."""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aswarm._agent import Agent

from ._exits import SetupError

if TYPE_CHECKING:
    from aswarm.mcp import MCPServer

F = TypeVar("F", bound=Callable[..., Any])


def mcp_option(function: F) -> F:
    """`--mcp`."""
    return click.option(
        "--mcp",
        "servers",
        metavar="URL|COMMAND",
        multiple=True,
        help="Give AGENT the tools of an MCP server: the URL of one, or a command that starts one, such as "
        '"npx -y @modelcontextprotocol/server-filesystem .". The command gets only HOME, PATH and the like of the '
        'environment; "env NAME=VALUE command" adds a variable. Can be repeated. Needs the extra mcp.',
    )(function)


@contextmanager
def with_mcp_servers(agent: Agent, servers: Sequence[str]) -> Generator[None]:
    """Inside the block, the agent has the tools of these servers too. For `Swarm`."""
    with ExitStack() as stack, _restored(agent):
        for server in map(mcp_server, servers):
            _add(agent, stack.enter_context(server))
        yield


@asynccontextmanager
async def with_async_mcp_servers(agent: Agent, servers: Sequence[str]) -> AsyncGenerator[None]:
    """Inside the block, the agent has the tools of these servers too. For `AsyncSwarm`."""
    async with AsyncExitStack() as stack:
        stack.enter_context(_restored(agent))
        for server in map(mcp_server, servers):
            _add(agent, await stack.enter_async_context(server))
        yield


def mcp_server(text: str) -> MCPServer:
    """The server at this URL, or the one that this command starts. Raises SetupError if the text is neither."""
    from aswarm.mcp import MCPServer  # noqa: PLC0415 - only once it is needed

    if text.startswith(("http://", "https://")):
        return MCPServer(text)
    try:
        command, *arguments = shlex.split(text)
    except ValueError as error:
        raise SetupError(
            f"--mcp: expected a URL that begins with https:// or http://, or a command such as 'npx -y a-server', not {text!r}"
        ) from error
    from mcp import StdioServerParameters  # noqa: PLC0415 - as above

    return MCPServer(StdioServerParameters(command=command, args=arguments))


def _add(agent: Agent, server: MCPServer) -> None:
    agent.functions = [*agent.functions, *server.functions]


@contextmanager
def _restored(agent: Agent) -> Generator[None]:
    functions = agent.functions
    try:
        yield
    finally:
        agent.functions = functions

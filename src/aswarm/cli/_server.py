"""Agents on the web until Ctrl-C, for `aswarm serve` and `aswarm demo`: the address, the token, and the line that is printed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import click

from aswarm._text import how_to_install

from ._exits import SetupError
from ._mcp_servers import with_async_mcp_servers

if TYPE_CHECKING:
    import uvicorn

    from aswarm._agent import Agent
    from aswarm._swarm import AsyncSwarm

F = TypeVar("F", bound=Callable[..., Any])

LOOPBACK = "127.0.0.1"
_LOCAL_HOSTS = (LOOPBACK, "::1", "localhost")


def server_options(function: F) -> F:
    """`--host`, `--port`, `--token` and `--store`."""
    host = click.option(
        "--host", metavar="ADDRESS", default=LOOPBACK, show_default=True, help="The address to listen at."
    )
    token = click.option(
        "--token",
        metavar="TOKEN",
        envvar="ASWARM_TOKEN",
        help="The bearer token that each request must have. A --host that other machines can reach needs one. Other users of "
        "this machine can read the command line, so set the environment variable ASWARM_TOKEN instead.",
    )
    store = click.option("--store", metavar="FILE", help="An SQLite file for the conversations. [default: memory]")
    return host(port_option("The port to listen at; 0 takes any free port.", 8000)(token(store(function))))


def port_option(text: str, default: int | None = None) -> Callable[[F], F]:
    """`--port`."""
    return click.option(
        "--port",
        metavar="N",
        type=click.IntRange(0, 65535),
        default=default,
        show_default=default is not None,
        help=text,
    )


def serve_until_stopped(
    swarm: AsyncSwarm,
    agents: list[Agent],
    *,
    host: str,
    port: int,
    token: str | None,
    store: str | None,
    servers: Sequence[str] = (),
) -> None:
    """Serve the agents, with the page and all wires. The first agent gets the tools of the MCP `servers`."""
    if token is None and host not in _LOCAL_HOSTS:
        raise SetupError(
            f"--host {host} can be reached from other machines: set ASWARM_TOKEN, or use --host {LOOPBACK}"
        )
    try:
        server = _server(swarm, agents, token, store)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise SetupError(f"serving needs the package {package}: {how_to_install('serve')}") from error
    with listening(host, port) as listener:
        names = ", ".join(agent.name for agent in agents)
        click.echo(f"{names}: http://{shown_address(listener)}/ (Ctrl-C ends it)", err=True)

        async def serve() -> None:
            async with with_async_mcp_servers(agents[0], servers):
                await server.serve(sockets=[listener])

        anyio.run(serve)


def _server(swarm: AsyncSwarm, agents: list[Agent], token: str | None, store: str | None) -> uvicorn.Server:
    import uvicorn  # noqa: PLC0415 - an extra

    from aswarm.serve import Service, bearer, everything, local_only  # noqa: PLC0415 - it needs starlette

    service = Service(
        swarm,
        agents=agents,
        auth=local_only if token is None else bearer(token),
        store=store,
        wires=("agui", "vercel", "openai"),
        page=True,
        show=everything,
    )
    return uvicorn.Server(uvicorn.Config(service, log_level="warning", lifespan="on"))


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises SetupError if the system refuses the address, as it does for a port that is taken."""
    with ExitStack() as stack:
        try:
            family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = stack.enter_context(socket.socket(family, kind, number))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)  # from now on, a client may connect
        except OSError as error:
            raise SetupError(
                f"cannot listen at {host}:{port}: {error.strerror}; choose another port or host"
            ) from error
        stack.pop_all()
        return listener


def shown_address(listener: socket.socket) -> str:
    """The host and the port of a socket, as in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

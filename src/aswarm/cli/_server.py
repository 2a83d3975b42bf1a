"""Agents on the web until Ctrl-C, for `aswarm serve` and `aswarm demo`: the address, the token, and the line that is printed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
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
    from aswarm.durable import DurableRuns

F = TypeVar("F", bound=Callable[..., Any])

LOOPBACK = "127.0.0.1"
_LOCAL_HOSTS = (LOOPBACK, "::1", "localhost")


def server_options(function: F) -> F:
    """`--host`, `--port`, `--token`, `--store` and `--code-version`."""
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
    store = click.option(
        "--store",
        metavar="FILE|URL",
        help="An SQLite file for the conversations; or the URL of a database for durable runs, sqlite:///runs.db or "
        "postgresql://user@host/database, which also has the runs and continues them in another process. [default: memory]",
    )
    version = click.option(
        "--code-version", metavar="TEXT", help="For durable runs: the version of the agents' code, such as a date."
    )
    port = port_option("The port to listen at; 0 takes any free port.", 8000)
    return host(port(token(store(version(function)))))


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
    code_version: str | None = None,
    servers: Sequence[str] = (),
) -> None:
    """Serve the agents, with the page and all wires. The first agent gets the tools of the MCP `servers`."""
    if token is None and host not in _LOCAL_HOSTS:
        raise SetupError(
            f"--host {host} can be reached from other machines: set ASWARM_TOKEN, or use --host {LOOPBACK}"
        )
    try:
        runs = durable_runs(swarm, agents, store, code_version)
        server = _server(swarm, agents, token, store, runs)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise SetupError(f"serving needs the package {package}: {how_to_install('serve')}") from error
    with listening(host, port) as listener:

        async def serve() -> None:
            _ = swarm.client  # a missing key is an error of the command, not of the first message
            async with with_async_mcp_servers(agents[0], servers), nullcontext() if runs is None else runs:
                names = ", ".join(agent.name for agent in agents)
                click.echo(f"{names}: http://{shown_address(listener)}/ (Ctrl-C ends it)", err=True)
                await server.serve(sockets=[listener])

        anyio.run(serve)


def _server(
    swarm: AsyncSwarm, agents: list[Agent], token: str | None, store: str | None, runs: DurableRuns | None
) -> uvicorn.Server:
    import uvicorn  # noqa: PLC0415 - an extra

    from aswarm.serve import Service, bearer, everything, local_only  # noqa: PLC0415 - it needs starlette

    service = Service(
        swarm,
        agents=agents,
        auth=local_only if token is None else bearer(token),
        store=store if runs is None else runs.store,
        runs=runs,
        wires=("agui", "vercel", "openai"),
        page=True,
        show=everything,
    )
    if runs is not None:
        runs.drivers = service.drivers
    return uvicorn.Server(uvicorn.Config(service, log_level="warning", lifespan="on"))


def durable_runs(swarm: AsyncSwarm, agents: list[Agent], store: str | None, version: str | None) -> DurableRuns | None:
    """The runs in the database of a URL; None for a file. Raises SetupError."""
    if store is None or "://" not in store:
        return None
    if version is None:
        raise SetupError(
            "durable runs need --code-version: a process continues only runs of its own version of the agents' code"
        )
    try:
        from aswarm.durable import DurableRuns  # noqa: PLC0415 - of an extra
    except ModuleNotFoundError as error:
        raise SetupError(f"durable runs need the package {error.name}: {how_to_install('durable')}") from error
    from aswarm.serve import Limits  # noqa: PLC0415 - as above

    return DurableRuns(swarm, agents=agents, store=store, version=version, limits=Limits())


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

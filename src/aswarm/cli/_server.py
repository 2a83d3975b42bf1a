"""Serves a `Service` until Ctrl-C, for the commands that do: the port, who may ask, and what is printed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aswarm._errors import ConfigurationError

from ._exits import SetupError

if TYPE_CHECKING:
    from aswarm._agent import Agent
    from aswarm._swarm import AsyncSwarm

F = TypeVar("F", bound=Callable[..., Any])

LOOPBACK = "127.0.0.1"
_LOCAL_HOSTS = (LOOPBACK, "::1", "localhost")


def server_options(function: F) -> F:
    """`--host`, `--port`, `--token` and `--store`."""
    host = click.option("--host", default=LOOPBACK, show_default=True, help="The address to listen at.")
    port = click.option(
        "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free port."
    )
    token = click.option(
        "--token",
        envvar="ASWARM_TOKEN",
        help="What requests must have as their bearer token; needed for a --host that other machines reach. Other users of "
        "this machine can read the command line, so set the environment variable ASWARM_TOKEN.",
    )
    store = click.option("--store", metavar="FILE", help="An SQLite file for the conversations. [default: memory]")
    return host(port(token(store(function))))


def serve_until_stopped(
    swarm: AsyncSwarm, agents: list[Agent], *, host: str, port: int, token: str | None, store: str | None
) -> None:
    """Serve the agents, with the page and all wires."""
    if token is None and host not in _LOCAL_HOSTS:
        raise SetupError(
            f"--host {host} can be reached from other machines: set ASWARM_TOKEN, or use --host {LOOPBACK}"
        )
    try:
        import uvicorn  # noqa: PLC0415 - an extra

        from aswarm.serve import Service, bearer, everything, local_only  # noqa: PLC0415 - it needs starlette
    except ModuleNotFoundError as error:
        raise SetupError(f"serving needs {error.name}: install the extra aswarm[serve]") from error
    try:
        service = Service(
            swarm,
            agents=agents,
            auth=local_only if token is None else bearer(token),
            store=store,
            wires=("agui", "vercel", "openai"),
            page=True,
            show=everything,
        )
    except ConfigurationError as error:
        raise SetupError(str(error)) from error
    with _listening(host, port) as listener:
        names = ", ".join(agent.name for agent in agents)
        click.echo(f"{names}: http://{_shown(listener)}/ (Ctrl-C ends it)", err=True)
        uvicorn.Server(uvicorn.Config(service, log_level="warning", lifespan="on")).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    with ExitStack() as stack:
        try:
            family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = stack.enter_context(socket.socket(family, kind, number))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)  # from now on, a client may connect
        except OSError as error:
            raise SetupError(f"{host}:{port} is not free: {error.strerror}. Give another --port or --host") from error
        stack.pop_all()
        return listener


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

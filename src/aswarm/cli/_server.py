"""The server of `aswarm serve` and `aswarm demo`: its options, its address, its start, and the signals that stop it."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import click

from aswarm._runtime.backend import scheduler

from ._command import SetupError
from ._load import extra
from ._options import equipped

if TYPE_CHECKING:
    from aswarm._swarm import AsyncSwarm
    from aswarm._values.agent import Agent
    from aswarm.mcp import MCPServer
    from aswarm.runs import Runs
    from aswarm.runs._shown_logs import Logs


@contextmanager
def received(*numbers: signal.Signals) -> Generator[AsyncIterator[int]]:
    """Yield an iterator over the signals that arrive in the block, in place of their handlers. Call this in the main thread."""
    sender, receiver = anyio.create_memory_object_stream[int](math.inf)
    schedule = scheduler()

    def handle(number: int, _: FrameType | None) -> None:
        schedule(partial(sender.send_nowait, number))

    with sender, receiver:
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield receiver
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


F = TypeVar("F", bound=Callable[..., Any])

LOOPBACK = "127.0.0.1"
_BODY_BYTES = 10_000_000  # the playground sends images
_LOCAL_HOSTS = (LOOPBACK, "::1", "localhost")


def port_option(text: str, default: int | None = None) -> Callable[[F], F]:
    """Return the option `--port`."""
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
    folders: Sequence[str] = (),
    logs: Logs | None = None,
) -> None:
    """Serve the agents until Ctrl-C, with the playground and all wires.

    `servers`: MCP servers, whose tools the first agent gets. `folders`: its skills. `logs`: recorded runs that the playground shows too.
    """
    if token is None and host not in _LOCAL_HOSTS:
        raise SetupError(
            f"--host {host} can be reached from other machines: set ASWARM_TOKEN, or use --host {LOOPBACK}"
        )
    with extra("serve", "serving needs"):
        import uvicorn  # noqa: PLC0415 - of an extra

        from aswarm.runs import show_everything  # noqa: PLC0415 - as above
        from aswarm.runs._shown_logs import show_logs  # noqa: PLC0415 - as above
        from aswarm.serve import Playground, Service, bearer, local_only  # noqa: PLC0415 - it needs starlette

        runs = _runs(swarm, agents, store, code_version)
    auth, user = (local_only, "local") if token is None else (bearer(token), "user")
    prompts: list[MCPServer] = []
    page = Playground(models="any", context_edits=True, prompts=prompts)
    service = Service(
        runs, auth=auth, wires=("agui", "vercel", "openai"), page=page, show=show_everything, body_bytes=_BODY_BYTES
    )
    server = uvicorn.Server(uvicorn.Config(service, log_level="warning", lifespan="on"))
    with listening(host, port) as listener:

        async def serve() -> None:
            async with swarm, equipped(agents[0], folders, servers) as opened, runs:
                prompts.extend(opened)
                if logs is not None:
                    await show_logs(runs, user, logs)
                names = ", ".join(agent.name for agent in agents)
                click.echo(f"{names}: http://{shown_address(listener)}/ (Ctrl-C ends it)", err=True)
                await server.serve(sockets=[listener])

        anyio.run(serve)


def _runs(swarm: AsyncSwarm, agents: list[Agent], store: str | None, version: str | None) -> Runs:
    from aswarm.runs import Limits, LocalRuns  # noqa: PLC0415 - it needs starlette

    if store is None or "://" not in store:
        return LocalRuns(swarm, store=store, agents=agents, limits=Limits.web())
    if version is None:
        raise SetupError(
            "durable runs need --code-version: a process continues only runs of its own version of the agents' code"
        )
    with extra("durable", "durable runs need"):
        from aswarm.durable import DurableRuns  # noqa: PLC0415 - of another extra
    return DurableRuns(swarm, agents=agents, store=store, version=version, limits=Limits.web())


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises SetupError if the system refuses the address, for example because it is in use."""
    with ExitStack() as stack:
        try:
            family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = stack.enter_context(socket.socket(family, kind, number))
            # Otherwise a restart would fail while old connections are in TIME_WAIT. On Windows, SO_REUSEADDR would allow a port
            # that another process uses.
            reuse = "SO_REUSEADDR" if os.name == "posix" else "SO_EXCLUSIVEADDRUSE"
            listener.setsockopt(socket.SOL_SOCKET, getattr(socket, reuse), 1)
            listener.bind(address)
            listener.listen(2048)  # the backlog of uvicorn; from now on, a client may connect
        except OSError as error:
            raise SetupError(
                f"cannot listen at {host}:{port}: {error.strerror}; choose another port or host"
            ) from error
        stack.pop_all()
        return listener


def shown_address(listener: socket.socket) -> str:
    """Return the host and the port of a socket in the form of a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""A web service whose client goes away: real Starlette, real uvicorn, real sockets on both sides."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response as WebResponse
from starlette.responses import StreamingResponse
from starlette.routing import Route

from aswarm import Agent, AsyncSwarm
from aswarm.testing import ScriptedAnswer, check_history
from tests.support.leaving.leave_points import Moment, check_continues, check_kept, in_tools, scene_of
from tests.support.leaving.run_scenes import BOUND, USER, Deeds, Scene, client_of, nothing_left_behind, until
from tests.support.providers.loopback import Reply, serve, sse

UNKNOWN = {"slow": "cancelled; its outcome is unknown"}


def asked(scene: Scene, _: object) -> bool:
    """The model has been asked."""
    return bool(scene.server.requests)


def stalls(stream: bool) -> Reply:
    """Half an answer, and no more."""
    return Reply(sse(ScriptedAnswer("Hello, world"), cut=5).pieces[:2], end="stall")


def flows(stream: bool) -> Reply:
    """An answer that goes on, a piece at a time."""
    return sse(ScriptedAnswer("Hello" * 5000), cut=5, pause=0.002)


# By name: the moment, and what the client must have read before it goes.
THREAD = in_tools("plain", "later", started=("plain",), answers={"plain": "plain done"}, open=("later",))
MOMENTS: dict[str, tuple[Moment, bytes]] = {
    "the answer stalls": (Moment(stalls, asked, holds_response=True), b"Hello"),
    "the answer flows": (Moment(flows, asked, holds_response=True), b"Hello"),
    "an async tool runs": (in_tools("slow", started=("slow",), answers=UNKNOWN), b"slow"),
    "a thread runs": (THREAD, b"plain"),
}

# --- bodies: the ways in which a service streams a run ----------------------------------------------------------------

Body = Callable[[Scene, list[Any]], AsyncIterator[bytes]]


async def classic(scene: Scene, runs: list[Any]) -> AsyncIterator[bytes]:
    """Swarm's events, with nothing around the stream."""
    stream = scene.swarm.run(scene.agent, [USER], stream=True)
    runs.append(stream)
    async for event in stream:
        yield json.dumps(event, default=str).encode() + b"\n"


async def typed(scene: Scene, runs: list[Any]) -> AsyncIterator[bytes]:
    """Typed events; the generator yields inside the block."""
    async with scene.swarm.stream(scene.agent, [USER]) as run:
        runs.append(run)
        async for event in run:
            yield repr(event).encode() + b"\n"


BODIES: tuple[Body, ...] = (classic, typed)


@asynccontextmanager
async def web(endpoint: Callable[[Request], Any], *, wrapped: bool = False) -> AsyncIterator[int]:
    """The service on a free port."""

    async def dispatch(request: Request, call_next: Any) -> WebResponse:
        response: WebResponse = await call_next(request)
        return response

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=dispatch)] if wrapped else []
    app = Starlette(routes=[Route("/", endpoint)], middleware=middleware)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=2, ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    try:
        yield int(listener.getsockname()[1])
    finally:
        server.should_exit = True
        await serving
        listener.close()


async def read_and_go(
    port: int, until_seen: bytes, *, reached: Callable[[], object] = lambda: True, abruptly: bool = False
) -> None:
    """A client that asks, reads until it has seen this, and closes (or resets) its connection once it is time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
    seen = b""
    while until_seen not in seen.partition(b"\r\n\r\n")[2]:
        piece = await reader.read(4096)
        assert piece, f"the service said only {seen!r}"
        seen += piece
    await until(reached)
    if abruptly:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()
    await writer.wait_closed()


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What anybody logged as a warning or worse."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def leave_and_check(moment_name: str, body: Body, caplog: pytest.LogCaptureFixture, **how: bool) -> None:
    """The client reads up to the moment and goes; then all is ended, kept, and can be gone on from."""
    moment, seen = MOMENTS[moment_name]
    runs: list[Any] = []
    abruptly = how.pop("abruptly", False)
    async with scene_of(moment) as scene, nothing_left_behind():

        async def endpoint(_: Request) -> StreamingResponse:
            return StreamingResponse(body(scene, runs))

        async with web(endpoint, **how) as port:
            await read_and_go(port, seen, reached=lambda: moment.reached(scene, runs[0]), abruptly=abruptly)
            gone_at = anyio.current_time()

            def has_ended() -> bool:
                return scene.server.open_now == 0 and scene.deeds.running == 0

            while how.get("wrapped") and not has_ended() and anyio.current_time() - gone_at < BOUND:
                # If the cancellation hits Starlette while it sends to BaseHTTPMiddleware, a traceback keeps the suspended
                # generator in a reference cycle, so Python closes it at its next garbage collection.
                await anyio.sleep(0.02)
                gc.collect()
            await until(has_ended)
            if moment.holds_response:
                assert scene.server.closed_at[0] - gone_at < BOUND
            assert anyio.current_time() - gone_at < BOUND + scene.deeds.seconds_in_thread * 2
        check_kept(moment, runs[0].response)
        assert runs[0].partial.startswith("Hello" if moment.holds_response else "")
        await check_continues(scene, runs[0].response)
    assert complaints(caplog) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_client_that_goes_away_ends_the_run(moment: str, body: Body, caplog: pytest.LogCaptureFixture) -> None:
    """The model's response is closed within the bound, tools are ended, nothing is logged, nothing is lost."""
    await leave_and_check(moment, body, caplog)


@pytest.mark.asyncio
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_client_that_resets_is_no_different(moment: str, body: Body, caplog: pytest.LogCaptureFixture) -> None:
    """A reset connection ends the run as a closed one does."""
    await leave_and_check(moment, body, caplog, abruptly=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_behind_a_middleware(moment: str, body: Body, caplog: pytest.LogCaptureFixture) -> None:
    """BaseHTTPMiddleware passes the body on through a task and a stream of its own."""
    await leave_and_check(moment, body, caplog, wrapped=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("body", BODIES)
async def test_a_client_that_stays_gets_all(body: Body, caplog: pytest.LogCaptureFixture) -> None:
    """The same service, and a client that reads to the end."""
    runs: list[Any] = []
    async with scene_of(in_tools("fast", "plain", started=())) as scene, nothing_left_behind():

        async def endpoint(_: Request) -> StreamingResponse:
            return StreamingResponse(body(scene, runs))

        async with web(endpoint) as port:
            await read_and_go(port, b"\r\n0\r\n\r\n")
        assert runs[0].response.text == "done"
        check_history([USER, *runs[0].response.messages])
    assert complaints(caplog) == []


@pytest.mark.asyncio
async def test_one_client_of_many_goes(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty clients share a swarm and an agent; every second one goes, the others get their answers."""
    runs: list[Any] = []
    deeds = Deeds()
    agent = Agent(functions=deeds.tools())
    async with (
        serve(lambda _: sse(ScriptedAnswer("Hello, world"), cut=1, pause=0.005)) as server,
        nothing_left_behind(),
    ):
        scene = Scene(server, AsyncSwarm(client := client_of(server)), deeds, agent)

        async def endpoint(request: Request) -> StreamingResponse:
            return StreamingResponse(classic(scene, runs))

        async with web(endpoint) as port, anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(read_and_go, port, b"H" if number % 2 else b"\r\n0\r\n\r\n")
        await client.close()
        stops = sorted(run.response.stop for run in runs)
        assert stops == ["answer"] * 10 + ["cancelled"] * 10
        assert len(server.closed_at) == 10
    assert complaints(caplog) == []

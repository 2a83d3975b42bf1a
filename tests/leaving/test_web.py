"""A web service whose client disconnects: real Starlette, real uvicorn, real sockets on both sides."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable
from itertools import chain, repeat
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response as WebResponse
from starlette.responses import StreamingResponse
from starlette.routing import Route

from aswarm import Agent, AsyncSwarm
from aswarm.testing import ScriptedAnswer
from tests.support.leaving.leave_points import Moment, asked, check_continues, check_kept, in_tools, scene_of
from tests.support.leaving.run_scenes import BOUND, USER, Deeds, Scene, client_of, nothing_left_behind, until
from tests.support.providers.loopback import Reply, serve, sse
from tests.support.serve.served import listening

UNKNOWN = {"slow": "cancelled; its outcome is unknown"}


def stalls(stream: bool) -> Reply:
    """Half an answer."""
    return Reply(sse(ScriptedAnswer("Hello, world"), cut=5).pieces[:2], end="stall")


def flows(stream: bool) -> Reply:
    """An answer without an end, a piece at a time. On a slow machine, the server may notice late that its client has left."""
    first, *_ = pieces = sse(ScriptedAnswer("Hello" * 2), cut=5).pieces
    said = next(piece for piece in pieces if b"Hello" in piece)
    return Reply(chain([first], repeat(said)), pause=0.002)


# By name: the moment, and the bytes that the client reads before it disconnects.
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


def app_of(endpoint: Callable[[Request], Any], how: str = "") -> Starlette:
    """Return the service. "behind a middleware": BaseHTTPMiddleware passes the body on through a task and a stream."""

    async def dispatch(request: Request, call_next: Any) -> WebResponse:
        response: WebResponse = await call_next(request)
        return response

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=dispatch)] if how == "behind a middleware" else []
    return Starlette(routes=[Route("/", endpoint)], middleware=middleware)


async def read_and_go(
    url: str, until_seen: bytes, *, reached: Callable[[], object] = lambda: True, how: str = "closes"
) -> None:
    """Ask, read until these bytes, wait for the moment, and close or reset the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
    seen = b""
    while until_seen not in seen.partition(b"\r\n\r\n")[2]:
        piece = await reader.read(4096)
        assert piece, f"the service sent only {seen!r}"
        seen += piece
    await until(reached)
    if how == "resets":
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()
    await writer.wait_closed()


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings and errors in the log."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["closes", "resets", "behind a middleware"])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("name", MOMENTS)
async def test_a_client_that_disconnects_ends_the_run(
    name: str, body: Body, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The model's response is closed within the bound, no tool runs on, nothing is logged, and nothing is lost."""
    moment, seen = MOMENTS[name]
    runs: list[Any] = []
    async with scene_of(moment) as scene, nothing_left_behind():

        async def endpoint(_: Request) -> StreamingResponse:
            return StreamingResponse(body(scene, runs))

        async with listening(app_of(endpoint, how)) as url:
            await read_and_go(url, seen, reached=lambda: moment.reached(scene, runs[0]), how=how)
            left_at = anyio.current_time()

            def is_over() -> bool:
                return scene.server.open_now == 0 and scene.deeds.running == 0

            while how == "behind a middleware" and not is_over() and anyio.current_time() - left_at < BOUND:
                # If the cancellation hits Starlette while it sends to BaseHTTPMiddleware, a traceback keeps the suspended
                # generator in a reference cycle, so Python closes it at its next garbage collection.
                await anyio.sleep(0.02)
                gc.collect()
            await until(is_over)
            if moment.holds_response:
                assert scene.server.closed_at[0] - left_at < BOUND
            assert anyio.current_time() - left_at < BOUND + scene.deeds.seconds_in_thread * 2
        check_kept(moment, runs[0].response)
        assert runs[0].partial.startswith("Hello" if moment.holds_response else "")
        await check_continues(scene, runs[0].response)
    assert complaints(caplog) == []


@pytest.mark.asyncio
async def test_some_clients_disconnect(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty clients share a swarm and an agent; every second one disconnects, the others get their answers."""
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

        async with listening(app_of(endpoint)) as url, anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(read_and_go, url, b"H" if number % 2 else b"\r\n0\r\n\r\n")
        await client.close()
        stops = sorted(run.response.stop for run in runs)
        assert stops == ["answer"] * 10 + ["cancelled"] * 10
        assert len(server.closed_at) == 10
    assert complaints(caplog) == []

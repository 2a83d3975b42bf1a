"""An answer whose connection ends after any byte: each transport gives the same error, and keeps the same text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError
from aswarm.testing import ScriptedAnswer
from tests.support.providers.loopback import read_request, spoken
from tests.support.providers.transports import client_at

pytestmark = pytest.mark.asyncio
FRAMINGS = ("chunked", "length", "close")


def answer(framing: str, body: dict[str, Any]) -> bytes:
    """The bytes of a correct answer. The end of its body is a chunk of length 0, a length, or the end of the connection."""
    reply = spoken(ScriptedAnswer("Hello"), body, cut=3)
    content = b"".join(reply.pieces)
    header = ""
    if framing == "chunked":
        header = "transfer-encoding: chunked\r\n"
        content = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*reply.pieces, b""))
    elif framing == "length":
        header = f"content-length: {len(content)}\r\n"
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {reply.content_type}\r\n{header}connection: close\r\n\r\n"
    return head.encode() + content


class CuttingServer:
    """Sends the first `length` bytes of each answer, and closes the connection."""

    def __init__(self, framing: str) -> None:
        self.length = 0
        self.is_whole = False
        self._framing = framing

    async def handle(self, stream: anyio.abc.SocketStream) -> None:
        async with stream:
            _, body = await read_request(stream)
            data = answer(self._framing, body)
            self.is_whole = self.length >= len(data)
            await stream.send(data[: self.length])


@asynccontextmanager
async def cutting(framing: str) -> AsyncIterator[tuple[CuttingServer, str]]:
    server = CuttingServer(framing)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, server.handle)
        yield server, f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/v1"
        group.cancel_scope.cancel()


async def outcome(swarm: AsyncSwarm, *, stream: bool, agent: Agent | None = None) -> tuple[Any, ...]:
    """The text of the answer, or the kind of the error, the text until then, its status and whether it is retryable."""
    try:
        async with swarm.stream(agent or Agent(), "Hi", deltas=stream) as run:
            async for _ in run:
                pass
    except CompletionError as error:
        return type(error).__name__, error.partial, error.status_code, error.retryable
    return "answer", run.response.text


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_connection_that_ends_after_any_byte(stream: bool, framing: str, step: int) -> None:
    """The same outcome on each transport: a retryable error until the answer is whole."""
    async with (
        cutting(framing) as (server, url),
        client_at(url) as on_httpx,
        client_at(url, "aiohttp") as on_aiohttp,
        client_at(url, "direct") as direct,
    ):
        swarms = [AsyncSwarm(client) for client in (on_httpx, on_aiohttp, direct)]
        while not server.is_whole:
            first, *others = [await outcome(swarm, stream=stream) for swarm in swarms]
            assert others == [first, first], f"after {server.length} bytes"
            assert first[0] == "answer" or first[2:] == (None, True)
            server.length += step
    assert first == ("answer", "Hello")


@pytest.mark.parametrize("step", [29, pytest.param(1, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_of_claude_that_ends_after_any_byte(stream: bool, framing: str, step: int) -> None:
    """A retryable error until the answer is whole, also if only the last event is missing."""
    agent = Agent(model="claude-sonnet-4-6", model_settings={"max_tokens": 1000})
    async with cutting(framing) as (server, url), client_at(url, api="anthropic") as client:
        swarm = AsyncSwarm(client)
        while not server.is_whole:
            found = await outcome(swarm, stream=stream, agent=agent)
            assert found[0] == "answer" or found[2:] == (None, True), f"after {server.length} bytes"
            server.length += step
    assert found == ("answer", "Hello")

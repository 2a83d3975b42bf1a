"""`AsyncSwarm(transport="aiohttp")`: the client that a swarm makes, on real sockets."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import openai
import pytest
from loopback import LoopbackServer, Reply, serve, sse, whole

from aswarm import Agent, AsyncSwarm, ConfigurationError, TextDelta
from aswarm.testing import Answer

MORE_THAN_AIOHTTPS_OWN_LIMIT = 130


@contextlib.asynccontextmanager
async def served(monkeypatch: pytest.MonkeyPatch, reply: Any) -> AsyncIterator[tuple[AsyncSwarm, LoopbackServer]]:
    async with serve(reply) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        async with AsyncSwarm(transport="aiohttp") as swarm:
            yield swarm, server


@pytest.mark.asyncio
async def test_a_run_is_answered(monkeypatch):
    """Whole, through the SDK's aiohttp transport."""
    async with served(monkeypatch, lambda _: whole(Answer("hello"))) as (swarm, server):
        response = await swarm.run(Agent(), "hi")
    assert response.text == "hello"
    assert server.requests[0]["messages"][-1] == {"role": "user", "content": "hi"}


@pytest.mark.asyncio
async def test_a_stream_is_read_piece_by_piece(monkeypatch):
    """As on httpx."""
    answer = sse(Answer("hello there"), cut=3)
    async with served(monkeypatch, lambda _: answer) as (swarm, _), swarm.stream(Agent(), "hi") as run:
        texts = [event.text async for event in run if isinstance(event, TextDelta)]
    assert texts == ["hel", "lo ", "the", "re"]


@pytest.mark.asyncio
async def test_a_reader_that_leaves_closes_the_response(monkeypatch):
    """The server notices that the client has gone, although it has more to say."""
    async with served(monkeypatch, lambda _: sse(Answer("hello there"), cut=3, end="stall")) as (swarm, server):
        async with swarm.stream(Agent(), "hi") as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    break
        with anyio.fail_after(60):
            while server.open_now:
                await anyio.sleep(0.01)
    assert run.response.stop == "cancelled"
    assert len(server.closed_at) == 1


@pytest.mark.asyncio
async def test_a_cancelled_run_closes_the_response(monkeypatch):
    """Also where nothing has come yet."""
    async with served(monkeypatch, lambda _: Reply([], silent=True)) as (swarm, server):
        async with anyio.create_task_group() as group:
            group.start_soon(swarm.run, Agent(), "hi")
            await server.asked.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(60):
            while server.open_now:
                await anyio.sleep(0.01)


@pytest.mark.asyncio
async def test_more_runs_are_in_flight_than_aiohttp_allows_by_itself(monkeypatch):
    """No answer comes before all have asked: a pool with a limit would wait for ever."""
    everybody = anyio.Event()

    async with served(monkeypatch, lambda _: sse(Answer("hello"), end="stall")) as (swarm, server):

        async def read_one() -> None:
            async with swarm.stream(Agent(), "hi") as run:
                async for event in run:
                    if isinstance(event, TextDelta):
                        if server.open_now == MORE_THAN_AIOHTTPS_OWN_LIMIT:
                            everybody.set()
                        await everybody.wait()
                        return

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for _ in range(MORE_THAN_AIOHTTPS_OWN_LIMIT):
                    group.start_soon(read_one)
    assert len(server.requests) == MORE_THAN_AIOHTTPS_OWN_LIMIT


@pytest.mark.asyncio
async def test_a_client_and_a_transport_exclude_each_other():
    """The client that was passed in has its own."""
    with pytest.raises(ConfigurationError, match="transport is for the client"):
        AsyncSwarm(openai.AsyncOpenAI(api_key="x"), transport="aiohttp")


@pytest.mark.asyncio
async def test_an_unknown_transport_is_refused():
    """The error names those that there are."""
    with pytest.raises(ConfigurationError, match="must be 'httpx' or 'aiohttp', not 'curl'"):
        AsyncSwarm(transport="curl")  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_without_aiohttp_the_error_says_what_to_install(monkeypatch):
    """The SDK puts a client that only raises in the place of the one that it cannot make."""

    def missing(**_: object) -> None:
        raise RuntimeError("To use the aiohttp client you must have installed the package with the `aiohttp` extra")

    monkeypatch.setattr(openai, "DefaultAioHttpClient", missing)
    with pytest.raises(ConfigurationError, match=r'pip install "\.\[aiohttp\]"'):
        await AsyncSwarm(transport="aiohttp").run(Agent(), "hi")


def test_on_trio_the_error_says_so():
    """aiohttp is for asyncio."""
    with pytest.raises(ConfigurationError, match="on asyncio only"):
        anyio.run(AsyncSwarm(transport="aiohttp").run, Agent(), "hi", backend="trio")

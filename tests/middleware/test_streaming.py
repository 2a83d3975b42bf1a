"""Streaming through middleware: chunks are live, and leaving a run closes the response behind any number of middlewares."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, TextDelta
from aswarm.middleware import CompletionHandler, CompletionRequest
from aswarm.testing import ScriptedAnswer
from tests.support.leaving.run_scenes import BOUND, nothing_left_behind, until
from tests.support.leaving.run_scenes import client_of as client_at
from tests.support.middleware.middlewares import Chunks, around_completions, passed_on
from tests.support.providers.loopback import LoopbackServer, Reply, serve, sse
from tests.support.providers.sources import client_of, script_of


class Gated:
    """A source whose every chunk waits until the consumer has had the one before."""

    def __init__(self) -> None:
        self.seen = 0
        self.news = anyio.Event()

    def has_seen(self) -> None:
        self.seen += 1
        self.news.set()
        self.news = anyio.Event()

    async def complete(self, request: CompletionRequest) -> Chunks:
        for number in range(5):
            with anyio.fail_after(60):
                while self.seen < number:
                    await self.news.wait()
            yield {"choices": [{"delta": {"content": str(number)}}]}
        yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize("classic", [True, False])
async def test_a_chunk_is_shown_before_the_next_is_asked_for(classic: bool, count: int) -> None:
    """No middleware delays a chunk: a source may wait until the consumer has each chunk."""
    source = Gated()
    swarm = AsyncSwarm(source, middleware=[around_completions(passed_on)] * count)
    seen: list[str] = []
    if classic:
        async for event in swarm.run(Agent(), "Hi", stream=True):
            if event.get("content"):
                seen.append(event["content"])
                source.has_seen()
    else:
        async with swarm.stream(Agent(), "Hi") as run:
            async for each in run:
                if isinstance(each, TextDelta):
                    seen.append(each.text)
                    source.has_seen()
    assert seen == list("01234")


class Closed:
    """Counts the generators of the middleware below."""

    def __init__(self) -> None:
        self.opened = self.open_now = 0
        self.middleware = around_completions(self._complete)

    async def _complete(self, inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        self.opened += 1
        self.open_now += 1
        try:
            async with aclosing(inner(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.open_now -= 1


Leave = Callable[[AsyncSwarm, Callable[[], None], LoopbackServer], Awaitable[None]]


async def by_break(swarm: AsyncSwarm, left: Callable[[], None], _: LoopbackServer) -> None:
    async with swarm.stream(Agent(), "Hi") as run:
        async for event in run:
            if isinstance(event, TextDelta):
                left()
                break


async def by_aclose(swarm: AsyncSwarm, left: Callable[[], None], _: LoopbackServer) -> None:
    run = swarm.run(Agent(), "Hi", stream=True)
    async for event in run:
        if event.get("content"):
            break
    left()
    await run.aclose()


async def by_dropping(swarm: AsyncSwarm, left: Callable[[], None], _: LoopbackServer) -> None:
    async for event in swarm.run(Agent(), "Hi", stream=True):
        if event.get("content"):
            left()
            break


async def by_an_error(swarm: AsyncSwarm, left: Callable[[], None], _: LoopbackServer) -> None:
    with suppress(KeyError):
        async with swarm.stream(Agent(), "Hi") as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    left()
                    raise KeyError


async def by_a_timeout(swarm: AsyncSwarm, left: Callable[[], None], _: LoopbackServer) -> None:
    with anyio.move_on_after(5) as scope:
        async with swarm.stream(Agent(), "Hi") as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    left()
                    scope.cancel()


async def while_it_waits(swarm: AsyncSwarm, left: Callable[[], None], server: LoopbackServer) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(swarm.run, Agent(), "Hi")
        await until(lambda: server.requests)
        left()
        group.cancel_scope.cancel()


LEAVING = [by_break, by_aclose, by_dropping, by_an_error, by_a_timeout, while_it_waits]


def half(body: dict[str, Any]) -> Reply:
    """Return half an answer that then stalls; a plain request gets no answer."""
    if not body["stream"]:
        return Reply([], silent=True)
    reply = sse(ScriptedAnswer("Hello"), cut=2)
    return Reply(reply.pieces[:2], end="stall")


@pytest.mark.parametrize("leave", LEAVING)
async def test_leaving_closes_the_response_behind_three_middlewares(leave: Leave) -> None:
    """The server sees the end of the connection, every generator is closed, and no task is left."""
    closed = Closed()
    left_at: list[float] = []
    async with serve(half) as server, client_at(server) as client:
        swarm = AsyncSwarm(client, middleware=[closed.middleware] * 3)
        async with nothing_left_behind():
            await leave(swarm, lambda: left_at.append(anyio.current_time()), server)
            await until(lambda: server.closed_at)
            assert server.closed_at[0] - left_at[0] < BOUND
    assert (closed.opened, closed.open_now, server.open_now) == (3, 0, 0)


@pytest.mark.parametrize("kind", ["openai", "source"])
@pytest.mark.parametrize("classic", [True, False])
def test_a_loop_that_ends_closes_an_open_run(kind: str, classic: bool) -> None:
    """If `asyncio.run` ends while a run is open behind three middlewares, all is closed without a report."""
    closed = Closed()
    script = script_of(["Hello, hello, hello"])
    client = client_of(kind, script)
    reported: list[object] = []
    held: list[object] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        swarm = AsyncSwarm(client, middleware=[closed.middleware] * 3)
        run: Any = swarm.run(Agent(), "Hi", stream=True) if classic else swarm.stream(Agent(), "Hi")
        held.append(run)
        if not classic:
            await run.__aenter__()
        for _ in range(3):
            await anext(run)

    asyncio.run(main())
    gc.collect()
    assert reported == []
    assert (closed.opened, closed.open_now) == (3, 0)
    assert (script if kind == "openai" else client).open_streams == 0


async def test_a_middleware_that_reads_ahead_is_closed_too() -> None:
    """A middleware that holds chunks which the consumer has not seen is closed like any other."""
    closed = Closed()

    async def ahead(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        async with aclosing(inner(request)) as chunks:
            first = [await anext(chunks), await anext(chunks)]
            for chunk in first:
                yield chunk
            async for chunk in chunks:
                yield chunk

    async with serve(half) as server, client_at(server) as client:
        swarm = AsyncSwarm(client, middleware=[closed.middleware, around_completions(ahead), closed.middleware])
        async with nothing_left_behind():
            await by_break(swarm, lambda: None, server)
            await until(lambda: server.closed_at)
    assert (closed.opened, closed.open_now) == (2, 0)

"""`hedge`, if several things happen in one step of the event loop: the loser is closed before the reader gets text."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import anyio
import anyio.abc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, CompletionError, RateLimits, Response, RunError, TextDelta
from aswarm.middleware import CompletionRequest, Middleware, hedge, retry
from tests.support.middleware.middlewares import chunk
from tests.support.runtime.virtual_time import run_virtual

BOTH = pytest.mark.parametrize("backend", ["asyncio", "trio"])
LIMITS = pytest.mark.parametrize("limits", [None, RateLimits()], ids=["", "limits"])


@dataclass
class Stepwise:
    """A source whose requests get their chunks, or their failure, when the test sets an event.

    `open`: the numbers of the open requests. `generated`: how many pieces of an answer each request has generated.
    `cleanup_fails`: whether closing a request raises.
    """

    open: set[int] = field(default_factory=set[int])
    generated: dict[int, int] = field(default_factory=dict[int, int])
    steps: list[anyio.Event] = field(default_factory=list[anyio.Event])
    fails: set[int] = field(default_factory=set[int])
    cleanup_fails: bool = False
    max_retries = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        number = len(self.steps)
        self.steps.append(anyio.Event())
        self.open.add(number)
        self.generated[number] = 0
        try:
            yield chunk(role="assistant")
            await self.steps[number].wait()
            if number in self.fails:
                raise CompletionError(f"failure {number}", retryable=False)
            for _ in range(5):
                self.generated[number] += 1
                yield chunk(content=f"{number}")
                await anyio.sleep(1)
            yield chunk("stop")
        finally:
            self.open.discard(number)
            if self.cleanup_fails and number not in self.fails:
                raise ValueError("closing failed")


@dataclass
class Seen:
    """The text, the error and the response for the reader of a stream. `open`: the open requests at each text."""

    text: str = ""
    open: list[set[int]] = field(default_factory=list[set[int]])
    error: RunError | None = None
    response: Response | None = None


async def read(swarm: AsyncSwarm, source: Stepwise, seen: Seen) -> None:
    try:
        async with swarm.stream(Agent(), "Hi") as run:
            async for event in run:
                if isinstance(event, TextDelta):
                    seen.text += event.text
                    seen.open.append({*source.open})
            seen.response = run.response
    except RunError as error:
        seen.error = error


async def in_one_step(
    source: Stepwise, steps: tuple[str, ...], seen: Seen, middleware: list[Middleware], limits: RateLimits | None = None
) -> None:
    """Start as many requests as the middleware sends, then do all steps without a return to the event loop."""
    swarm = AsyncSwarm(source, middleware=middleware, rate_limits=limits)
    async with anyio.create_task_group() as group:
        group.start_soon(read, swarm, source, seen)
        await anyio.sleep(10)
        for step in steps:
            if step == "cancel":
                group.cancel_scope.cancel()
            else:
                number = int(step[-1])
                source.fails |= {number} if step.startswith("fail") else set[int]()
                source.steps[number].set()


ORDERS = [
    order
    for first in ("content 0", "fail 0")
    for second in ("content 1", "fail 1")
    for more in ((), ("cancel",))
    for order in permutations((first, second, *more))
]


@BOTH
@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
@pytest.mark.parametrize("cleanup_fails", [False, True])
@LIMITS
def test_one_request_is_open_when_the_reader_gets_text(
    order: tuple[str, ...], cleanup_fails: bool, limits: RateLimits | None, backend: str
) -> None:
    """In each order of events, the other request generates nothing more, and is charged."""
    source, seen = Stepwise(cleanup_fails=cleanup_fails), Seen()
    run_virtual(backend, in_one_step, source, order, seen, [hedge(after_seconds=1)], limits)
    assert source.open == set()
    if "cancel" in order:
        assert seen.response is None
        return
    winners = {number for number in (0, 1) if f"content {number}" in order}
    if not winners:
        assert str(seen.error) == "failure 0"
        return
    assert seen.text in {f"{number}" * 5 for number in winners}
    winner = int(seen.text[0])
    assert all(each <= {winner} for each in seen.open)
    assert source.generated[1 - winner] <= 1
    if seen.response is not None:
        assert seen.response.usage.requests == 1 + (1 - winner in winners)


@BOTH
@given(order=st.permutations(["content 0", "content 1", "content 2", "content 3"]), count=st.integers(1, 4))
def test_a_hedge_of_hedges_leaves_one_request_open(order: list[str], count: int, backend: str) -> None:
    """Of four requests, some have content in one step."""
    source, seen = Stepwise(), Seen()
    # The outer hedge sends its second request after 3 s, and each of the two is sent twice after 1 s.
    middleware = [hedge(after_seconds=3, share=1), retry(1), hedge(after_seconds=1, share=1)]
    run_virtual(backend, in_one_step, source, tuple(order[:count]), seen, middleware)
    assert len(source.steps) == 4
    assert all(len(each) <= 1 for each in seen.open)
    assert source.open == set()
    assert sum(source.generated.values()) <= 4 + count


@BOTH
@LIMITS
@pytest.mark.parametrize("ends", ["content 0", "fail 0"])
def test_no_second_request_is_sent_in_the_step_of_the_first_content(
    ends: str, limits: RateLimits | None, backend: str
) -> None:
    """If the time is over in the same step, a request that was not sent is not charged."""
    source, seen = Stepwise(), Seen()

    async def same_step() -> None:
        swarm = AsyncSwarm(source, middleware=[hedge(after_seconds=10)], rate_limits=limits)
        async with anyio.create_task_group() as group:
            group.start_soon(read, swarm, source, seen)
            await anyio.sleep(10)
            source.fails |= {0} if ends == "fail 0" else set[int]()
            source.steps[0].set()
            await anyio.sleep(1)
            if len(source.steps) > 1:
                source.steps[1].set()

    run_virtual(backend, same_step)
    assert source.open == set()
    if ends == "content 0":
        assert seen.response is not None
        assert (seen.text, seen.response.usage.requests) == ("00000", len(source.steps))

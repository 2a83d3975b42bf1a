"""The cost of middleware in calls, not in time: nothing without middleware, and a bounded number of calls with it."""

from __future__ import annotations

from collections import Counter

import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.testing import call
from tests.support.contract.counting import counting
from tests.support.middleware.middlewares import around_completions, passed_on
from tests.support.providers.sources import script_of

pytestmark = pytest.mark.asyncio

# The generator around the user's own, and the step that hides the generators that start in it. As measured.
CALLS_PER_CHUNK = 5
CALLS_PER_RUN = 240
CALLS_PER_MIDDLEWARE = 7  # in a run with two requests: its result is checked


async def look() -> str:
    return "sunny"


async def counted(swarm: AsyncSwarm, *, stream: bool) -> Counter[str]:
    """Return the counts of the second of two equal runs."""
    agent = Agent(functions=[look])

    async def read() -> None:
        async with swarm.stream(agent, "Hi", deltas=stream) as run:
            async for _ in run:
                pass
        assert run.response.text.startswith("x")

    await read()
    with counting() as counts:
        await read()
    return counts


def swarm_of(length: int, **options: object) -> AsyncSwarm:
    return AsyncSwarm(script_of([call("look"), "x" * length] * 2).client(), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [False, True])
async def test_no_middleware_is_no_frame(stream: bool) -> None:
    """An empty list of middleware runs the same functions as no middleware."""
    plain = await counted(swarm_of(30), stream=stream)
    for empty in ((), []):
        assert await counted(swarm_of(30, middleware=empty), stream=stream) == plain
    assert not [name for name in plain if "isolated" in name or "chain" in name]


async def test_a_middleware_that_changes_nothing_costs_a_bounded_number_of_calls() -> None:
    """The number of calls of ours is bounded for each run and for each chunk."""
    extra: dict[int, int] = {}
    for length in (30, 930):
        plain = await counted(swarm_of(length), stream=True)
        passing = await counted(swarm_of(length, middleware=[around_completions(passed_on)]), stream=True)
        extra[length] = passing.total() - plain.total()
    assert (extra[930] - extra[30]) / 300 <= CALLS_PER_CHUNK
    assert extra[30] <= CALLS_PER_RUN  # two requests, and the copies of their dicts and lists


async def test_more_middleware_costs_no_calls_of_ours_for_a_chunk() -> None:
    """The result of each middleware is checked once for a request, and a chunk passes no check."""
    one = await counted(swarm_of(300, middleware=[around_completions(passed_on)]), stream=True)
    many = await counted(swarm_of(300, middleware=[around_completions(passed_on)] * 5), stream=True)
    assert many.total() - one.total() <= 4 * CALLS_PER_MIDDLEWARE

"""What middleware costs, counted and not timed: nothing where there is none, and a bounded number of calls where there is."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

import aswarm
from aswarm import Agent, AsyncSwarm
from aswarm.testing import call
from tests.support.middleware.middlewares import around_completions, passed_on
from tests.support.providers.sources import script_of

pytestmark = pytest.mark.asyncio

# The generator around the user's own, and the step that hides the generators that begin in it. As measured.
CALLS_PER_CHUNK = 5
CALLS_PER_RUN = 240
CALLS_PER_MIDDLEWARE = 7  # in a run with two requests: what it returns is checked

ASWARM = str(Path(aswarm.__file__).parent / "_")


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Counts the frames of aswarm that begin or go on, by function."""
    counts: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ASWARM):
            counts[frame.f_code.co_qualname] += 1

    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        yield counts
    finally:
        sys.setprofile(None)
        gc.enable()


async def look() -> str:
    return "sunny"


async def counted(swarm: AsyncSwarm, *, stream: bool) -> Counter[str]:
    """The counts of the second of two equal runs: what is made once is made."""
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
    """`middleware=()` and a list that is empty run the very functions that run without it."""
    plain = await counted(swarm_of(30), stream=stream)
    for empty in ((), []):
        assert await counted(swarm_of(30, middleware=empty), stream=stream) == plain
    assert not [name for name in plain if "isolated" in name or "chain" in name]


async def test_a_middleware_that_changes_nothing_costs_a_bounded_number_of_calls() -> None:
    """For each run, and for each chunk; the generators of the middleware itself are the user's own."""
    extra: dict[int, int] = {}
    for length in (30, 930):
        plain = await counted(swarm_of(length), stream=True)
        passing = await counted(swarm_of(length, middleware=[around_completions(passed_on)]), stream=True)
        extra[length] = passing.total() - plain.total()
    assert (extra[930] - extra[30]) / 300 <= CALLS_PER_CHUNK
    assert extra[30] <= CALLS_PER_RUN  # two requests, and the copies of their dicts and lists


async def test_more_middleware_costs_no_calls_of_ours_for_a_chunk() -> None:
    """What each middleware returns is checked for each request; a chunk passes no check, however long the list is."""
    one = await counted(swarm_of(300, middleware=[around_completions(passed_on)]), stream=True)
    many = await counted(swarm_of(300, middleware=[around_completions(passed_on)] * 5), stream=True)
    assert many.total() - one.total() <= 4 * CALLS_PER_MIDDLEWARE

"""Single rejections while other requests succeed hold up only their own request; a provider that rejects all gets few requests."""

from __future__ import annotations

import random
import statistics
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, RateLimits
from aswarm.testing import ScriptedAnswer
from tests.support.rate_limits.timed_models import TimedModel, busy, client_of
from tests.support.runtime.virtual_time import in_virtual_time


def sporadic(seed: int, share: float, answer: float, rejection: float) -> TimedModel:
    """A model that rejects a share of its requests at random. `answer` and `rejection`: the seconds until it replies."""
    chances = random.Random(seed)
    return TimedModel(
        lambda _: busy(1, delay=rejection) if chances.random() < share else ScriptedAnswer("Hi", delay=answer)
    )


async def all_items(swarm: AsyncSwarm, items: int, at_once: int, way: str) -> list[str]:
    """The texts of all items, in a batch or in plain tasks."""
    texts: list[str] = []
    if way == "batch":
        async with swarm.batch(Agent(), ["Hi"] * items, concurrency=at_once) as outcomes:
            return [outcome.response.text async for outcome in outcomes if outcome.response is not None]
    slots = anyio.Semaphore(at_once)

    async def one() -> None:
        async with slots:
            texts.append((await swarm.run(Agent(), "Hi")).text)

    async with anyio.create_task_group() as group:
        for _ in range(items):
            group.start_soon(one)
    return texts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "rejection"),
    [pytest.param(0.25, 0.25, marks=pytest.mark.heavy), (0.5, 0.05)],
    ids=["same time", "fast rejection"],
)
@pytest.mark.parametrize(("way", "limits"), [("batch", None), ("gather", RateLimits())], ids=["batch", "gather"])
def test_a_few_rejections_cost_only_the_time_of_their_requests(
    answer: float, rejection: float, way: str, limits: RateLimits | None
) -> None:
    """400 items, 100 at once, 3 % rejections with `Retry-After: 1`: about as long as with the SDK's own retries."""
    took = list[float]()

    @in_virtual_time
    async def measured(seed: int) -> None:
        model = sporadic(seed, 0.03, answer, rejection)
        swarm = AsyncSwarm(client_of(model), rate_limits=limits)
        start = anyio.current_time()
        assert await all_items(swarm, 400, 100, way) == ["Hi"] * 400
        took.append(anyio.current_time() - start)

    # The median, because an item may be rejected several times, and trio draws the order of its tasks.
    for seed in range(5):
        measured(seed)
    # Four rounds of answers. The last items may be rejected, and rejected again.
    assert statistics.median(took) <= 4 * answer + 2 * (1 + answer) + 1


@in_virtual_time
async def test_a_rejection_of_the_first_burst_does_not_stop_the_next_requests() -> None:
    """The first reply of all is a 429 with a long Retry-After: the pause ends when the other requests are answered."""
    model = TimedModel(lambda _: busy(30, delay=0.1) if len(model.times) == 1 else ScriptedAnswer("Hi", delay=0.5))
    swarm = AsyncSwarm(client_of(model))
    async with swarm.batch(Agent(), ["Hi"] * 100, concurrency=10) as outcomes:
        assert [outcome.error async for outcome in outcomes] == [None] * 100
    assert sum(at < 10 for at in model.times) == 100
    assert max(model.times) == pytest.approx(30.1, abs=0.01), "the rejected request waits as long as the server asked"


@in_virtual_time
async def test_a_pause_that_ends_early_leaves_no_trace_on_an_automatic_concurrency() -> None:
    """`concurrency="auto"` is as high after such a pause as before it, and grows as fast."""
    model = TimedModel(lambda _: busy(30, delay=0.1) if len(model.times) == 1 else ScriptedAnswer("Hi", delay=0.25))
    swarm = AsyncSwarm(client_of(model))
    async with swarm.batch(Agent(), ["Hi"] * 600, concurrency="auto") as outcomes:
        assert [outcome.error async for outcome in outcomes] == [None] * 600
    assert sum(at < 3 for at in model.times) == 600


@in_virtual_time
async def test_after_enough_answers_a_rejection_stops_no_other_request() -> None:
    """The rejected request waits for its Retry-After, even if it has no successor in flight."""
    model = TimedModel(lambda _: busy(20) if len(model.times) == 31 else ScriptedAnswer("Hi", delay=0.1))
    swarm = AsyncSwarm(client_of(model), rate_limits=RateLimits())
    async with anyio.create_task_group() as group:
        for _ in range(30):
            await swarm.run(Agent(), "Hi")
        group.start_soon(swarm.run, Agent(), "rejected")
        await anyio.sleep(0.05)
        for _ in range(10):
            await swarm.run(Agent(), "Hi")
    assert model.times[-1] == pytest.approx(23, abs=0.1)
    assert sum(at < 5 for at in model.times) == 41


@pytest.mark.parametrize("way", ["batch", "gather"])
@pytest.mark.parametrize("good", [0, 50, 400])
def test_a_provider_that_rejects_everything_gets_few_requests(good: int, way: str) -> None:
    """In a minute: the requests that were in flight, at most ten more, and one after each pause."""

    @in_virtual_time
    async def measured() -> None:
        model = TimedModel(lambda _: busy(10) if len(model.times) > good else ScriptedAnswer("Hi", delay=0.2))
        swarm = AsyncSwarm(client_of(model), rate_limits=RateLimits())
        with anyio.move_on_after(60):
            await all_items(swarm, 2000, 50, way)
        assert good < len(model.times) <= good + 50 + 10 + 6

    measured()


@in_virtual_time
async def test_a_quota_that_is_used_up_pauses_all_requests() -> None:
    """100 requests in ten seconds: nearly all rejections are of requests that were in flight together."""
    starts: list[float] = []
    allowed = 0
    rejected = 0

    def reply(_: Any) -> Any:
        nonlocal allowed, rejected
        now = anyio.current_time()
        if not starts or now >= starts[-1] + 10:
            starts.append(now)
            allowed = 0
        allowed += 1
        if allowed <= 100:
            return ScriptedAnswer("Hi", delay=0.3)
        rejected += 1
        return busy(starts[-1] + 10 - now)

    swarm = AsyncSwarm(client_of(TimedModel(reply)), rate_limits=RateLimits())
    assert await all_items(swarm, 500, 20, "batch") == ["Hi"] * 500
    assert anyio.current_time() - starts[0] < 55
    assert rejected <= len(starts) * (20 + 10)

"""`concurrency="auto"`: the number of items at once follows the answers of the provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest
import trio.testing

from aswarm import CompletionError
from tests.support.batch.batches import AGENT, Counted, Echo, idle, outcomes_of
from tests.support.runtime.virtual_time import in_virtual_time


async def test_auto_finds_the_number_out() -> None:
    """The number starts at ten, and grows while requests are answered and outcomes are taken."""
    items, gate = Counted(), anyio.Event()
    source = Echo(lambda _: gate.wait())
    async with source.swarm().batch(AGENT, items, concurrency="auto") as outcomes:
        await idle()
        assert items.pulled == 10
        source.gate = Echo().gate
        gate.set()
        for _ in range(30):
            await anext(outcomes)
        await idle()
        assert items.pulled > 40


async def test_outcomes_that_are_not_taken_are_no_reason_for_more() -> None:
    """The number does not grow while the consumer takes no outcomes."""
    items = Counted()
    async with Echo().swarm().batch(AGENT, items, concurrency="auto"):
        await idle()
        assert items.pulled <= 20


@in_virtual_time
async def test_a_number_that_is_not_used_does_not_grow() -> None:
    """Items that come slowly, and then all at once, do not all start at once."""

    async def items() -> AsyncIterator[str]:
        for number in range(600):
            await anyio.sleep(0.5 if number < 400 else 0)
            yield str(number)

    source = Echo(lambda _: anyio.sleep(1))
    began: list[float] = []
    source.gate = lambda _: noted(began)
    assert len(await outcomes_of(source, items(), concurrency="auto")) == 600
    at_once = [sum(at <= other < at + 0.5 for other in began) for at in began]
    assert max(at_once[:411]) <= 20, "the first items that came at once"
    assert source.most > 50, "it grows when it is used"


async def noted(began: list[float]) -> None:
    began.append(trio.current_time())
    await anyio.sleep(1)


@pytest.mark.parametrize("status", [503, 529, None])
def test_an_overloaded_provider_lowers_the_number(status: int | None) -> None:
    """A server that can do twelve requests at once rejects few requests."""

    @in_virtual_time
    async def found_out() -> None:
        refused: list[float] = []

        async def gate(_: str) -> None:
            if source.running > 12:
                refused.append(trio.current_time())
                raise CompletionError("overloaded", status_code=status, retryable=True)
            await anyio.sleep(1)

        source = Echo(gate)
        outcomes = await outcomes_of(source, map(str, range(600)), concurrency="auto", attempts=20)
        assert all(outcome.error is None for outcome in outcomes)
        assert trio.current_time() < 1.5 * 600 / 12
        assert len(refused) < 250

    found_out()


def test_a_batch_of_a_closed_loop_does_not_disturb_other_loops() -> None:
    """A swarm with a batch of a closed loop can run in another loop."""
    gate = asyncio.Event
    source = Echo()
    swarm = source.swarm()

    async def left() -> None:
        stuck = gate()
        source.gate = lambda _: stuck.wait()
        batch = swarm.batch(AGENT, Counted(), concurrency="auto")
        await batch.__aenter__()
        await asyncio.sleep(0.01)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(left())
    loop.close()
    source.gate = Echo().gate
    assert asyncio.run(swarm.run(AGENT, "Hi")).text == "Hi"

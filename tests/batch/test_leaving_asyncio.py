"""Batches and asyncio: plain `task.cancel()`, the end of the event loop, cancellation by other code."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from aswarm import RunError
from tests.support.batch.batches import AGENT, Counted, Echo, Scene, idle, outcomes_of, text_of
from tests.support.sampling import listed


@pytest.mark.asyncio
@pytest.mark.parametrize("steps", listed(range(0, 40, 3), [0, 6, 18, 33]))
async def test_a_plain_cancel_at_any_step_leaves_nothing(nothing_left: Any, steps: int) -> None:
    """A task that is cancelled after any number of steps leaves no request running."""
    source = Echo(lambda _: asyncio.sleep(0))

    async def read() -> None:
        async with source.swarm().batch(AGENT, Counted(), concurrency=3) as outcomes:
            async for _ in outcomes:
                await asyncio.sleep(0)

    task = asyncio.ensure_future(read())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.running == 0


@pytest.mark.asyncio
async def test_cancelling_again_and_again_still_waits_for_the_items(nothing_left: Any) -> None:
    """A task that is cancelled again and again finishes after all its items."""
    scene = Scene()

    async def read() -> None:
        async with scene.batch() as outcomes:
            async for _ in outcomes:
                pass

    task = asyncio.ensure_future(read())
    await idle()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    scene.check()


def test_the_end_of_the_loop_ends_the_batch() -> None:
    """The end of the event loop stops a batch whose block was never left."""
    scene = Scene()
    left: list[Any] = []

    async def main() -> None:
        batch = scene.batch()
        left.append(await batch.__aenter__())
        await anext(batch)
        await idle()

    asyncio.run(main())
    scene.check()


# --- cancelled by other code ------------------------------------------------------------------------------------------


# anyio makes the coroutine of a task at once; it is not awaited if the task is cancelled before its first step.
@pytest.mark.filterwarnings("ignore:coroutine 'Runner._run_in_task' was never awaited:RuntimeWarning")
@pytest.mark.parametrize("steps", range(8))
def test_the_end_of_the_loop_may_come_at_any_step(steps: int) -> None:
    """The event loop may be closed between the creation of a task and its first step."""

    async def read() -> None:
        async with Echo(lambda _: asyncio.sleep(0)).swarm().batch(AGENT, Counted(), concurrency=3) as outcomes:
            async for _ in outcomes:
                pass

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(read())
        for _ in range(steps):
            await asyncio.sleep(0)
        return task

    assert asyncio.run(main()).cancelled()
    gc.collect()


@pytest.mark.asyncio
async def test_an_item_that_other_code_cancels_has_failed() -> None:
    """A CancelledError of other code is the error of its item."""

    async def gate(text: str) -> None:
        if text == "b":
            raise asyncio.CancelledError("elsewhere")

    outcomes = await outcomes_of(Echo(gate), ["a", "b", "c"], ordered=True)
    assert [type(outcome.error) for outcome in outcomes] == [type(None), RunError, type(None)]
    assert "elsewhere" in str(outcomes[1].error)
    assert outcomes[1].error is not None
    assert outcomes[1].error.response is not None  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_an_iterator_that_other_code_cancels_has_failed() -> None:
    """A CancelledError of the iterator is an error of the batch."""

    async def items() -> AsyncIterator[str]:
        yield "a"
        raise asyncio.CancelledError("elsewhere")

    async with Echo().swarm().batch(AGENT, items()) as outcomes:
        assert text_of(await anext(outcomes)) == "a"
        with pytest.raises(RunError, match="elsewhere"):
            await anext(outcomes)

"""The memory of a batch: running items and waiting outcomes are never more than `concurrency`."""

from __future__ import annotations

import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from aswarm import CompletionError
from aswarm.batch import BatchResult, Item
from tests.support.batch.batches import AGENT, Counted, Echo, idle, outcomes_of, text_of


async def forever(_: str) -> None:
    await anyio.sleep_forever()


async def read(outcomes: AsyncIterator[BatchResult], texts: list[str]) -> None:
    async for outcome in outcomes:
        texts.append(text_of(outcome))  # noqa: PERF401 - texts before an exception count


@pytest.mark.parametrize("concurrency", [1, 2, 7])
async def test_concurrency_is_the_number_of_running_items(concurrency: int) -> None:
    """As many items run as `concurrency`, and no further item is read."""
    source = Echo(forever)
    items = Counted()
    async with source.swarm().batch(AGENT, items, concurrency=concurrency):
        await idle()
        assert (source.running, items.pulled) == (concurrency, concurrency)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_slow_consumer_slows_the_batch_down(ordered: bool) -> None:
    """Outcomes that the consumer has not taken count for `concurrency`."""
    items = Counted()
    source = Echo()
    async with source.swarm().batch(AGENT, items, concurrency=5, ordered=ordered) as outcomes:
        await idle()
        assert (items.pulled, len(source.ended)) == (5, 5)
        for taken in range(1, 5):
            await anext(outcomes)
            await idle()
            assert items.pulled == len(source.ended) == 5 + taken


async def test_memory_does_not_grow_with_the_batch() -> None:
    """Only the running and the waiting items of a long batch are in memory."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Metadata:
        pass

    def items() -> Iterator[Item]:
        for number in range(300):
            metadata = Metadata()
            alive.add(metadata)
            yield Item(str(number), metadata=metadata)

    most = 0
    async with Echo().swarm().batch(AGENT, items(), concurrency=4) as outcomes:
        async for outcome in outcomes:
            del outcome
            gc.collect(0)
            most = max(most, len(alive))
    gc.collect()
    assert most <= 4 + 2  # the generator has one, and the consumer another one
    assert len(alive) == 0


@pytest.mark.parametrize("item", ["x", 42])
async def test_an_error_does_not_refer_to_itself(item: Any) -> None:
    """The error is freed with the outcome, without the garbage collector."""

    async def gate(_: str) -> None:
        raise CompletionError("no")

    gc.collect()
    gc.disable()
    try:
        [outcome] = await outcomes_of(Echo(gate), [item])
        assert outcome.error is not None
        error = weakref.ref(outcome.error)
        del outcome
        assert error() is None
    finally:
        gc.enable()


# --- the source of items ----------------------------------------------------------------------------------------------


async def numbers(count: int, closed: list[str]) -> AsyncIterator[str]:
    try:
        for number in range(count):
            yield str(number)
    finally:
        await anyio.sleep(0)
        closed.append("numbers")


async def test_items_may_come_from_an_async_iterable() -> None:
    """The async generator of the items is closed at the end."""
    closed: list[str] = []
    outcomes = await outcomes_of(Echo(), numbers(20, closed), concurrency=3)
    assert sorted(int(text_of(outcome)) for outcome in outcomes) == list(range(20))
    assert closed == ["numbers"]


async def test_items_that_come_late_do_not_hold_up_the_others() -> None:
    """Outcomes are available while the batch waits for the next item."""
    send, receive = anyio.create_memory_object_stream[str](5)
    async with send, Echo().swarm().batch(AGENT, receive) as outcomes:
        for text in "abc":
            await send.send(text)
            assert text_of(await anext(outcomes)) == text
    assert receive.statistics().open_receive_streams == 0


async def test_an_iterator_without_aclose_is_accepted() -> None:
    """The items may be an async iterator without `aclose`."""

    class Once:
        left = ["x"]

        def __aiter__(self) -> Once:
            return self

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    assert len(await outcomes_of(Echo(), Once())) == 1


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_an_error_of_the_iterator_comes_after_all_outcomes(kind: str) -> None:
    """Started items finish and give outcomes; then the exception of the iterator is raised unchanged."""
    error = OSError("the file is gone")

    def plain() -> Iterator[str]:
        yield from "abc"
        raise error

    async def asynchronous() -> AsyncIterator[str]:
        for text in "abc":
            yield text
        raise error

    async def gate(_: str) -> None:
        await idle()  # the reading has failed by then

    taken: list[str] = []
    items: Any = plain() if kind == "plain" else asynchronous()
    with pytest.raises(OSError, match="gone") as caught:
        async with Echo(gate).swarm().batch(AGENT, items, concurrency=9) as outcomes:
            await read(outcomes, taken)
    assert caught.value is error
    assert sorted(taken) == ["a", "b", "c"]


async def test_after_the_failure_the_batch_has_ended() -> None:
    """The exception of the iterator is raised once."""

    class Broken:
        def __iter__(self) -> Iterator[str]:
            raise LookupError("no table")

    async with Echo().swarm().batch(AGENT, Broken()) as outcomes:
        with pytest.raises(LookupError, match="no table"):
            await anext(outcomes)
        with pytest.raises(StopAsyncIteration):
            await anext(outcomes)


# --- context variables of Python --------------------------------------------------------------------------------------

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


async def test_runs_see_the_contextvars_of_the_code_that_opened_the_batch() -> None:
    """A run sees no contextvar that the iterator of the items or another item has set."""
    seen: list[str] = []

    def items() -> Iterator[str]:
        for number in range(12):
            WHO.set(f"item {number}")
            yield str(number)

    async def gate(text: str) -> None:
        seen.append(WHO.get())
        WHO.set(text)

    WHO.set("caller")
    await outcomes_of(Echo(gate), items(), concurrency=2)
    assert seen == ["caller"] * 12
    assert WHO.get() == "caller"

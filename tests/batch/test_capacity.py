"""How much of a batch is in memory: items that run, and outcomes that wait, are never more than `concurrency`."""

from __future__ import annotations

import contextvars
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from typing import Any

import anyio
import pytest

from aswarm import CompletionError
from aswarm.batch import Item, Outcome
from tests.support.batch.batches import AGENT, Counted, Echo, idle, outcomes_of, text_of

pytestmark = pytest.mark.anyio


async def forever(_: str) -> None:
    await anyio.sleep_forever()


async def read(outcomes: AsyncIterator[Outcome], texts: list[str]) -> None:
    async for outcome in outcomes:
        texts.append(text_of(outcome))  # noqa: PERF401 - what came before an exception counts


@pytest.mark.parametrize("concurrency", [1, 2, 7])
async def test_as_many_items_run_as_concurrency_says(concurrency: int) -> None:
    """No more, and no fewer while there are enough items."""
    source = Echo(forever)
    items = Counted()
    async with source.swarm().batch(AGENT, items, concurrency=concurrency):
        await idle()
        assert (source.running, items.pulled) == (concurrency, concurrency)


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_slow_consumer_slows_the_batch_down(ordered: bool) -> None:
    """Outcomes that were not taken count: no further item is read or begun."""
    items = Counted()
    source = Echo()
    async with source.swarm().batch(AGENT, items, concurrency=5, ordered=ordered) as outcomes:
        await idle()
        assert (items.pulled, len(source.ended)) == (5, 5)
        for taken in range(1, 5):
            await anext(outcomes)
            await idle()
            assert items.pulled == len(source.ended) == 5 + taken


async def test_in_order_an_early_outcome_counts() -> None:
    """One slow item at the front: the outcomes behind it wait, and no further item begins."""
    slow = anyio.Event()

    async def gate(text: str) -> None:
        if text == "0":
            await slow.wait()

    items = Counted()
    async with Echo(gate).swarm().batch(AGENT, items, concurrency=4, ordered=True) as outcomes:
        await idle()
        assert items.pulled == 4
        slow.set()
        assert [(await anext(outcomes)).index for _ in range(30)] == list(range(30))


async def test_memory_does_not_grow_with_the_batch() -> None:
    """Of a long batch, only the items that run or wait are alive."""
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
    assert most <= 4 + 2  # the generator holds one, and one was just taken
    assert len(alive) == 0


@pytest.mark.parametrize("item", ["x", 42])
async def test_an_error_does_not_refer_to_itself(item: Any) -> None:
    """There is no reference cycle: the error is freed with the outcome, without the garbage collector."""

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


async def test_the_limit_may_change_while_the_batch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is read before each item."""

    class Learned:
        limit = 2

        def watch(self, *_: object) -> None: ...

    learned = Learned()
    items = Counted()
    batch = Echo().swarm().batch(AGENT, items)
    monkeypatch.setattr(batch, "_limit", lambda: nullcontext(learned))
    async with batch as outcomes:
        await idle()
        assert items.pulled == 2
        learned.limit = 6
        await anext(outcomes)
        await idle()
        assert items.pulled == 7
        learned.limit = 1
        for _ in range(5):
            await anext(outcomes)
            await idle()
        assert items.pulled == 7
        await anext(outcomes)
        await anext(outcomes)
        await idle()
        assert items.pulled == 9


# --- where items come from --------------------------------------------------------------------------------------------


async def numbers(count: int, closed: list[str]) -> AsyncIterator[str]:
    try:
        for number in range(count):
            yield str(number)
    finally:
        await anyio.sleep(0)
        closed.append("numbers")


async def test_items_may_come_from_an_async_iterable() -> None:
    """Its generator is closed at the end."""
    closed: list[str] = []
    outcomes = await outcomes_of(Echo(), numbers(20, closed), concurrency=3)
    assert sorted(int(text_of(outcome)) for outcome in outcomes) == list(range(20))
    assert closed == ["numbers"]


async def test_an_async_iterable_is_read_in_one_task() -> None:
    """So it may have a cancel scope open while it yields."""

    async def items() -> AsyncIterator[str]:
        with anyio.CancelScope():
            for number in range(20):
                yield str(number)

    assert len(await outcomes_of(Echo(), items(), concurrency=3)) == 20


async def test_items_that_come_late_do_not_hold_up_the_others() -> None:
    """Outcomes come out while the batch waits for the next item."""
    send, receive = anyio.create_memory_object_stream[str](5)
    async with send, Echo().swarm().batch(AGENT, receive) as outcomes:
        for text in "abc":
            await send.send(text)
            assert text_of(await anext(outcomes)) == text
    assert receive.statistics().open_receive_streams == 0


async def test_an_iterator_without_aclose_is_accepted() -> None:
    """Not every async iterator can be closed."""

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
async def test_what_reading_the_items_raises_comes_after_all_outcomes(kind: str) -> None:
    """Items that have begun are finished and come out; then the exception is raised unchanged."""
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


async def test_an_exception_of_iter_is_raised_too() -> None:
    """It is raised unchanged."""

    class Broken:
        def __iter__(self) -> Iterator[str]:
            raise LookupError("no table")

    with pytest.raises(LookupError, match="no table"):
        await outcomes_of(Echo(), Broken())


async def test_after_the_failure_the_batch_has_ended() -> None:
    """The exception is raised once."""

    def items() -> Iterator[str]:
        raise LookupError
        yield

    async with Echo().swarm().batch(AGENT, items()) as outcomes:
        with pytest.raises(LookupError):
            await anext(outcomes)
        with pytest.raises(StopAsyncIteration):
            await anext(outcomes)


# --- context variables of Python --------------------------------------------------------------------------------------

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("WHO", default="nobody")


async def test_runs_see_the_contextvars_of_the_code_that_opened_the_batch() -> None:
    """They see neither what the iterator of the items sets nor what another item has set."""
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

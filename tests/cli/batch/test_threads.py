"""Input and output of the command line in threads, which must not hold up the event loop or the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from aswarm.cli.commands.batch.threads import DaemonWorker, in_thread

# --- reading ---


class Source:
    """A generator that records how far it was read, and whether it was closed."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = False

    def items(self, most: int, error: Exception | None = None) -> Generator[int]:
        try:
            while self.given < most:
                self.given += 1
                yield self.given
            if error is not None:
                raise error
        finally:
            self.closed = True


async def until_closed(source: Source) -> None:
    for _ in range(1000):
        if source.closed:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it was not closed")


@pytest.mark.asyncio
async def test_all_items_come_in_order() -> None:
    """All items come, and the generator is closed."""
    source = Source()
    assert [item async for item in in_thread(source.items(300))] == list(range(1, 301))
    await until_closed(source)


@pytest.mark.asyncio
async def test_only_so_many_are_read_ahead() -> None:
    """Only a few items are read before they are asked for; leaving early closes the generator."""
    source = Source()
    items = in_thread(source.items(1000), ahead=5)
    assert await anext(items) == 1
    await asyncio.sleep(0.05)
    assert source.given <= 7
    await items.aclose()
    await until_closed(source)


@pytest.mark.asyncio
async def test_an_error_while_reading() -> None:
    """The error is raised where the items are asked for, after the items before it."""
    items = in_thread(Source().items(1, OSError("gone")))
    assert await anext(items) == 1
    with pytest.raises(OSError, match="gone"):
        await anext(items)


def test_a_read_that_hangs_does_not_hold_the_end() -> None:
    """The event loop can end while the thread is still reading."""
    source, arrived = Source(), threading.Event()

    def items() -> Generator[int]:
        try:
            arrived.wait(60)
            yield 1
        finally:
            source.closed = True

    async def leave() -> None:
        numbers = in_thread(items())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(numbers)

    asyncio.run(leave())
    assert not source.closed
    arrived.set()
    asyncio.run(until_closed(source))


# --- calls ---


def test_calls_one_by_one() -> None:
    """Calls are made in order; an error is raised to the caller that requested it, and the next call is still made."""
    made: list[int] = []
    thread = DaemonWorker("test")

    def call(number: int) -> Callable[[], None]:
        return lambda: made.append(1 // number)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(thread.call(call(number)) for number in (1, 0, 2)), return_exceptions=True)

    first, second, third = asyncio.run(ask())
    assert (first, third, made) == (None, None, [1, 0])
    assert isinstance(second, ZeroDivisionError)
    thread.close(lambda: made.append(7), 60)
    assert made == [1, 0, 7]


def test_a_call_that_is_stuck() -> None:
    """A call that is stuck holds up no other task; a call that was cancelled before its turn is not made."""
    made: list[str] = []
    began, go_on = threading.Event(), threading.Event()
    thread = DaemonWorker("test")

    def stuck() -> None:
        began.set()
        go_on.wait(60)

    async def ask() -> None:
        asking = [asyncio.ensure_future(thread.call(call)) for call in (stuck, lambda: made.append("cancelled"))]
        assert await asyncio.to_thread(began.wait, 60)
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)

    asyncio.run(ask())
    thread.close(lambda: made.append("last"), 0.01)
    assert not made
    go_on.set()
    thread.close(lambda: None, 60)
    assert made == ["last"]

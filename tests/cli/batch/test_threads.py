"""Threads of the command line for input and output, and the end of a batch."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aswarm.cli.commands.batch import command as stopping
from aswarm.cli.commands.batch.command import finish
from aswarm.cli.commands.batch.output import DaemonWorker, in_thread
from tests.support.runtime.virtual_time import virtual_backend

# --- reading ---


class Source:
    """A generator. `given`: the number of read items. `closed`: whether it was closed."""

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
async def test_an_item_is_read_when_it_is_needed() -> None:
    """No item is read ahead, and leaving early closes the generator."""
    source = Source()
    items = in_thread(source.items(1000))
    assert [await anext(items), await anext(items)] == [1, 2]
    assert source.given == 2
    await items.aclose()
    await until_closed(source)


@pytest.mark.asyncio
async def test_an_error_while_reading() -> None:
    """The error of the generator is raised after the items before it."""
    items = in_thread(Source().items(1, OSError("gone")))
    assert await anext(items) == 1
    with pytest.raises(OSError, match="gone"):
        await anext(items)


def test_the_event_loop_can_stop_during_a_read() -> None:
    """The event loop can stop while the thread reads."""
    source, reading, arrived = Source(), threading.Event(), threading.Event()

    def items() -> Generator[int]:
        try:
            reading.set()
            arrived.wait(60)
            yield 1
        finally:
            source.closed = True

    async def leave() -> None:
        numbers = in_thread(items())
        first = asyncio.ensure_future(anext(numbers))
        await asyncio.to_thread(reading.wait, 60)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

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
    started, go_on = threading.Event(), threading.Event()
    thread = DaemonWorker("test")

    def stuck() -> None:
        started.set()
        go_on.wait(60)

    async def ask() -> None:
        asking = [asyncio.ensure_future(thread.call(call)) for call in (stuck, lambda: made.append("cancelled"))]
        assert await asyncio.to_thread(started.wait, 60)
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)

    asyncio.run(ask())
    thread.close(lambda: made.append("last"), 0.01)
    assert not made
    go_on.set()
    thread.close(lambda: None, 60)
    assert made == ["last"]


# --- the end ---


def test_sigterm() -> None:
    """SIGTERM cancels and awaits the running work, and then raises Terminated, a KeyboardInterrupt."""
    done: list[str] = []

    async def main() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    with pytest.raises(stopping.Terminated):
        stopping.run_until_sigterm(main())
    assert done == ["cleaned up"]
    assert issubclass(stopping.Terminated, KeyboardInterrupt)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_without_signal_handlers() -> None:
    """Outside the main thread the work runs without a handler for SIGTERM."""
    done: list[str] = []

    async def main() -> None:
        done.append("done")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(stopping.run_until_sigterm, main()).result()
    assert done == ["done"]


async def cancelled(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work in a task, and cancel the task."""
    waiting = asyncio.ensure_future(finish(work, 5))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("anyio_backend", [virtual_backend("asyncio")], ids=["asyncio"])
async def test_work_is_finished(anyio_backend: object) -> None:
    """A cancelled caller waits some seconds for the work, and raises its own cancellation."""
    done: list[str] = []

    async def work(seconds: float, error: Exception | None = None) -> None:
        await asyncio.sleep(seconds)
        done.append("done")
        if error is not None:
            raise error

    await cancelled(work(1))
    await cancelled(work(1, ValueError()))
    await cancelled(work(3600))
    assert done == ["done", "done"]

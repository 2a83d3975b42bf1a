"""Input and output of the command line in threads, and what Ctrl-C leaves of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aswarm.cli.batch._threads import OneByOne, to_its_end


async def cancelled(work: Coroutine[Any, Any, None]) -> None:
    """Begin it, and cancel whoever waits for it."""
    waiting = asyncio.ensure_future(to_its_end(work, 0.05))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_what_is_half_done_is_done() -> None:
    """Cancellation waits for it, for a while; how it ends is nothing to whoever is cancelled."""
    done: list[str] = []

    async def work(seconds: float, error: Exception | None = None) -> None:
        await asyncio.sleep(seconds)
        done.append("done")
        if error is not None:
            raise error

    async def all_of_them() -> None:
        await cancelled(work(0.01))
        await cancelled(work(0.01, ValueError()))
        await cancelled(work(60))

    asyncio.run(all_of_them())
    assert done == ["done", "done"]


def test_calls_one_by_one() -> None:
    """In their order; what one raises is raised to whoever asked for it, and the next one is made."""
    made: list[int] = []
    thread = OneByOne("test")

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
    """It holds nobody; what was cancelled before its turn is not made."""
    made: list[str] = []
    go_on = threading.Event()
    thread = OneByOne("test")

    async def ask() -> None:
        calls = [lambda: (go_on.wait(), None)[1], lambda: made.append("cancelled")]
        asking = [asyncio.ensure_future(thread.call(call)) for call in calls]
        await asyncio.sleep(0.01)
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)

    asyncio.run(ask())
    thread.close(lambda: made.append("last"), 0.01)
    assert not made
    go_on.set()
    thread.close(lambda: None, 60)
    assert made == ["last"]

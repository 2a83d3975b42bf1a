"""The event loop that waiting threads take turns to step: its end, its portal, and what becomes of it in a fork."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import suppress
from typing import Any

import pytest
from blocking import do, in_notebook, in_script, until

from aswarm._blocking import event_loop
from aswarm._blocking.caller import in_callers_thread
from aswarm._blocking.event_loop import SharedLoop, Visit
from aswarm._blocking.interrupts import Interrupts


async def answer() -> str:
    return "answer"


@pytest.mark.parametrize("place", [in_script, in_notebook])
def test_its_end(place: Any) -> None:
    """Tasks that were left are cancelled and awaited, generators closed; then nothing can be done any more."""
    ended: list[str] = []
    kept: list[Any] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")

    async def generate() -> Any:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def begin() -> None:
        kept.extend([asyncio.ensure_future(hang()), generate()])
        await anext(kept[1])

    loop = SharedLoop()
    place(lambda: do(loop, begin))
    loop.close()
    assert sorted(ended) == ["generator", "task"]
    assert not loop.is_usable
    loop.leave(begin)
    with pytest.raises(RuntimeError, match="at its end"):
        do(loop, answer)
    assert len(kept) == 2


def test_threads_that_wait_at_the_end() -> None:
    """A daemon thread that waits, or is in its function, does not hold up the end, and ends without a word."""
    gate, began = threading.Event(), threading.Barrier(3)
    ended: list[str] = []

    async def hang() -> None:
        asyncio.get_running_loop().run_in_executor(None, began.wait)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("hang")

    def hold() -> None:
        began.wait(10)
        gate.wait(10)

    async def busy() -> None:
        await in_callers_thread(hold)

    def wait(work: Any) -> None:
        with pytest.raises(SystemExit):
            do(loop, work)
        ended.append("thread")

    loop = SharedLoop()
    threads = [threading.Thread(target=wait, args=[work]) for work in (hang, busy)]
    for thread in threads:
        thread.start()
    began.wait(10)
    loop.close()
    assert ended[0] == "hang"
    gate.set()
    for thread in threads:
        thread.join(10)
    assert ended == ["hang", "thread", "thread"]


def test_what_does_not_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that refuses to be cancelled, and one that blocks the loop in a thread, hold up the end for a while only."""
    monkeypatch.setattr(event_loop, "_PATIENCE", 0.02)
    released = threading.Event()

    async def refuse() -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(10)

    async def begin() -> None:
        kept.append(asyncio.ensure_future(refuse()))

    kept: list[Any] = []
    loop = SharedLoop()
    do(loop, begin)
    loop.close()
    assert not kept[0].done()
    released.set()
    kept[0].get_coro().close()
    kept[0]._log_destroy_pending = False

    gate, began = threading.Event(), threading.Event()

    async def block() -> None:
        began.set()
        gate.wait(10)

    blocked = SharedLoop()
    thread = threading.Thread(target=do, args=(blocked, block))
    thread.start()
    began.wait()
    blocked.close()
    assert not blocked._loop.is_closed()
    gate.set()
    thread.join()
    blocked.close()
    assert blocked._loop.is_closed()


def test_work_that_nobody_waits_for_and_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever drops a stream is held up for a while only; the portal does the rest."""
    monkeypatch.setattr(event_loop, "_PATIENCE", 0.01)
    done = threading.Event()

    async def last() -> None:
        await asyncio.sleep(0.05)
        done.set()

    loop = SharedLoop()
    loop.leave(last)
    assert done.wait(10)
    until(lambda: not loop._left)
    loop.close()


def test_a_task_that_ends_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """What a function has started and left may raise SystemExit: whoever leads gets it, and the portal lives on."""

    async def leave() -> None:
        async def stray() -> None:
            raise SystemExit(3)

        task = asyncio.ensure_future(stray())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.exception()

    loop = SharedLoop()
    with pytest.raises(SystemExit):
        do(loop, leave)
    assert do(loop, answer) == "answer"
    in_notebook(lambda: do(loop, leave))
    assert "ends an event loop" in caplog.text
    assert in_notebook(lambda: do(loop, answer)) == "answer"
    loop.close()


def test_ctrl_c_while_nobody_is_told() -> None:
    """It is kept: raised by who asks, told to who comes next, raised at the latest when it is let through again."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                interrupts.check()
            signal.raise_signal(signal.SIGINT)
            told: list[str] = []
            with interrupts.told_to(lambda: told.append("told")):
                assert told == ["told"]
            with pytest.raises(KeyboardInterrupt):
                interrupts.call(lambda: told.append("called"))
            assert told == ["told"]
        with pytest.raises(KeyboardInterrupt), Interrupts():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


class Fussy(SharedLoop):
    """Interrupts the thread that waits, once, at a moment that no signal would hit by itself."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self.moment = moment

    def wait(self, begin: Any, interrupts: Interrupts) -> None:
        moment, self.moment = self.moment, "over"
        if moment == "begun":
            begin(Visit(self))
        if moment in ("handed over", "over"):
            super().wait(begin, interrupts)
        if moment != "over":
            raise TimeoutError(moment)


@pytest.mark.parametrize("moment", ["not begun", "begun", "handed over"])
def test_an_interruption_at_the_worst_moment(moment: str) -> None:
    """Before anything has begun, before its first step, or when a function was handed over that then is not called."""
    called: list[str] = []

    async def work() -> None:
        await in_callers_thread(lambda: called.append("called"))

    loop = Fussy(moment)
    with pytest.raises(TimeoutError, match=moment):
        do(loop, work)
    assert called == []
    assert do(loop, answer) == "answer"
    loop.close()


def test_interrupts_of_another_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python refuses to set a handler, Ctrl-C is what the host makes of it."""

    def refuse(*_: object) -> None:
        raise ValueError("signal only works in main thread of the main interpreter")

    monkeypatch.setattr(signal, "signal", refuse)
    with Interrupts() as interrupts:
        assert interrupts.call(lambda: "called") == "called"

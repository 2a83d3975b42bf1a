"""The thread that owns the event loop: its end, and interruptions at the worst moments."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest

from aswarm import Agent, Swarm
from aswarm._blocking import caller
from aswarm._blocking.caller import Caller, CallerInbox, CallerThreadRunner, Job, JobQueue, in_callers_thread
from aswarm._blocking.event_loop import EventLoopThread, event_loop_thread
from aswarm.testing import call
from tests.support.blocking.blocking import consume, do, in_notebook, in_script, until
from tests.support.blocking.plain_client import BlockingClient

NAME = "aswarm event loop"


def loop_threads() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == NAME])


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

    before = loop_threads()
    loop = EventLoopThread()
    place(lambda: do(loop, begin))
    assert loop_threads() == before + 1
    loop.close()
    assert sorted(ended) == ["generator", "task"]
    assert not loop.is_usable
    assert loop_threads() == before
    loop.call(lambda: ended.append("called"))
    with pytest.raises(RuntimeError, match="is ending"):
        do(loop, answer)
    assert len(ended) == len(kept) == 2


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
        began.wait(120)
        gate.wait(120)

    async def busy() -> None:
        await in_callers_thread(hold)

    def wait(work: Any) -> None:
        with pytest.raises(SystemExit):
            do(loop, work)
        ended.append("thread")

    loop = EventLoopThread()
    threads = [threading.Thread(target=wait, args=[work]) for work in (hang, busy)]
    for thread in threads:
        thread.start()
    began.wait(120)
    loop.close()
    assert ended[0] == "hang"
    gate.set()
    for thread in threads:
        thread.join(120)
    assert ended == ["hang", "thread", "thread"]


def test_a_function_that_would_begin_at_the_end() -> None:
    """A run that goes on where it should have been cancelled calls no function any more, and does not hold up the end."""
    called: list[str] = []
    began = threading.Event()

    async def go_on() -> None:
        began.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await in_callers_thread(lambda: called.append(threading.current_thread().name), must_run=True)
        slot = await CallerThreadRunner(1).acquire()
        await slot.run(lambda: called.append("function"))

    def wait() -> None:
        with pytest.raises(SystemExit):
            do(loop, go_on)

    loop = EventLoopThread()
    thread = threading.Thread(target=wait)
    thread.start()
    began.wait(120)
    loop.close()
    thread.join(120)
    assert called == [NAME], "what closes is called, on the event loop"


def test_what_does_not_end_is_left() -> None:
    """A task that refuses to be cancelled, and one that blocks the loop, hold up the end for a while only."""
    released = threading.Event()

    async def refuse() -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async def begin() -> None:
        kept.append(asyncio.ensure_future(refuse()))

    kept: list[Any] = []
    loop = EventLoopThread()
    do(loop, begin)
    loop.close(0.02)
    assert not kept[0].done()
    released.set()
    until(kept[0].done)

    gate, began = threading.Event(), threading.Event()

    async def block() -> None:
        began.set()
        gate.wait(120)

    before = loop_threads()
    blocked = EventLoopThread()
    thread = threading.Thread(target=do, args=(blocked, block))
    thread.start()
    began.wait()
    blocked.close(0.02)
    gate.set()
    thread.join()
    until(lambda: loop_threads() <= before)


def test_a_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own error, for example at the end of a program, is raised, and nothing is left."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="at interpreter shutdown"):
        EventLoopThread()


def test_a_dropped_stream_whose_end_lasts() -> None:
    """The thread that drops it is held up for a while only; the run ends on the event loop."""
    gate, ended = threading.Event(), threading.Event()

    async def close() -> None:
        while not gate.is_set():
            await asyncio.sleep(0.001)
        ended.set()

    Caller(event_loop_thread()).close_dropped(close, seconds=0.01)
    assert not ended.is_set()
    gate.set()
    assert ended.wait(120)


def test_a_dropped_stream_whose_client_blocks() -> None:
    """The functions for which the thread has no time are called on the event loop."""
    closed: list[str] = []
    all_closed = threading.Event()

    def close_client() -> None:
        closed.append(threading.current_thread().name)
        time.sleep(0.6)  # longer than the thread has time
        if len(closed) == 3:
            all_closed.set()

    async def close() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(partial(in_callers_thread, close_client, must_run=True))

    Caller(event_loop_thread()).close_dropped(close, seconds=0.5)
    assert all_closed.wait(120)
    assert closed == [threading.current_thread().name, NAME, NAME]


def test_ctrl_c_while_a_dropped_stream_is_closed() -> None:
    """Ctrl-C ends the wait for the close, and nothing else: a finalizer cannot raise it."""
    closing, closed = threading.Event(), threading.Event()

    async def close() -> None:
        closing.set()
        while not closed.is_set():
            await asyncio.sleep(0.01)

    def press() -> None:
        closing.wait(120)
        os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=press)
    user.start()
    begin = time.monotonic()
    Caller(event_loop_thread()).close_dropped(close, seconds=60)
    assert time.monotonic() - begin < 30
    closed.set()
    user.join()


def test_a_task_of_a_function_outlives_the_run_and_finds_no_thread_that_waits() -> None:
    """After the end of a run, work for the caller's thread is done on the event loop: no thread would do it."""
    results: list[Any] = []
    ended, done = threading.Event(), threading.Event()

    async def later() -> None:
        while not ended.is_set():
            await anyio.sleep(0.001)
        results.append(await in_callers_thread(threading.get_ident))
        done.set()

    async def leave() -> str:
        results.append(asyncio.create_task(later()))
        return "left"

    for way in ("run", "run(stream=True)"):
        ended.clear()
        done.clear()
        consume(Swarm(BlockingClient(call("leave"), "Done")), Agent(functions=[leave]), way)
        ended.set()
        assert done.wait(120), way


@pytest.mark.parametrize("place", [in_script, in_notebook])
def test_a_task_that_ends_the_loop(place: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A task that a function has started may raise SystemExit: that is logged, and the loop lives on."""

    async def leave() -> str:
        async def stray() -> None:
            raise SystemExit(3)

        task = asyncio.ensure_future(stray())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.exception()
        return "left"

    loop = EventLoopThread()
    assert place(lambda: do(loop, leave)) == "left"
    assert "raised SystemExit or KeyboardInterrupt" in caplog.text
    assert place(lambda: do(loop, answer)) == "answer"
    loop.close()


class Interrupting(EventLoopThread):
    """Interrupts the thread that waits, at a moment that no signal would hit by itself: in its n-th call."""

    def __init__(self, moment: int, *, after: bool) -> None:
        super().__init__()
        self.moments = moment
        self.after = after

    def call(self, callback: Any) -> None:
        self.moments -= 1
        if self.moments or self.after:
            super().call(callback)
        if not self.moments:
            raise TimeoutError


class Interrupted(CallerInbox):
    """Interrupts the thread that waits, when it is given a function."""

    def next(self) -> Any:
        if isinstance(item := super().next(), Job):
            raise TimeoutError
        return item


async def call_function(called: list[str]) -> None:
    slot = await CallerThreadRunner(1).acquire()
    try:
        await slot.run(lambda: called.append("called"))
    except BaseException as error:
        called.append(f"{type(error).__name__}, withdrawn: {slot.was_withdrawn}")
        raise


@pytest.mark.parametrize(
    ("moment", "after", "expected"),
    [(1, False, []), (1, True, ["Withdrawn, withdrawn: True"]), (2, False, ["called"])],
    ids=["before it begins", "before its first step", "when the function has returned"],
)
def test_an_interruption_at_the_worst_moment(moment: int, after: bool, expected: list[str]) -> None:
    """A function that was not called is not called any more, a called one keeps its result, and the loop can be used again."""
    called: list[str] = []
    loop = Interrupting(moment, after=after)
    with pytest.raises(TimeoutError):
        do(loop, lambda: call_function(called))
    assert called == expected
    assert do(loop, answer) == "answer"
    loop.close()


def test_an_interruption_when_a_function_was_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not called."""
    called: list[str] = []
    loop = EventLoopThread()
    with monkeypatch.context() as patched:
        patched.setattr(caller, "CallerInbox", Interrupted)
        with pytest.raises(TimeoutError):
            do(loop, lambda: call_function(called))
    assert called == ["Withdrawn, withdrawn: True"]
    assert do(loop, answer) == "answer"
    loop.close()


def test_a_function_that_must_run_after_the_caller_has_left() -> None:
    """It waits for the thread, and is called on the event loop at the end."""
    called: list[str] = []

    async def leave() -> None:
        jobs = JobQueue(event_loop_thread())
        job = Job(lambda: called.append(threading.current_thread().name), must_run=True)
        async with anyio.create_task_group() as group:
            group.start_soon(jobs.wait_for, job)
            await anyio.sleep(0)
            jobs.leave()
            assert called == []
            jobs.finish()

    do(event_loop_thread(), leave)
    assert called == [NAME]

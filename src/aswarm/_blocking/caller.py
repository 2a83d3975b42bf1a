"""The thread that waits for a run: it waits for the event loop, and calls meanwhile what the run hands over.

`CallerThreadRunner` is the `FunctionRunner` of such a run. Which functions are handed over is decided where they are
called; when they begin is decided in `jobs`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from aswarm._agent import as_response
from aswarm._errors import RunError, set_attribute
from aswarm._runtime.backend import TaskResult
from aswarm._runtime.threads import Slot, ThreadPool

from .event_loop import EventLoopThread
from .interrupts import Interrupts
from .jobs import CallerInbox, Job, JobQueue, Wakeup, Withdrawn, context_of_caller

T = TypeVar("T")

# How long the thread that drops a stream waits until it is closed.
_CLOSE_SECONDS = 2.0

_caller: contextvars.ContextVar[Caller] = contextvars.ContextVar("aswarm_caller")


async def in_callers_thread(work: Callable[[], T], *, must_run: bool = False) -> T:
    """Call `work` in the thread that waits for this run.

    Once the caller has left the run, only what `must_run` is called: there, or here if no thread waits any more.
    """
    caller = _caller.get(None)
    if caller is None or (not caller.waits and (must_run or not caller.jobs.has_left)):
        return work()
    return await caller.jobs.do(Job(work, must_run=must_run))


class _Awaited(TaskResult[T]):
    """What a thread waits for, as a task: a whole run, or the next event of it."""

    def __init__(self, work: Callable[[], Awaitable[T]], caller: Caller, waiter: CallerInbox) -> None:
        super().__init__()
        self.waiter = waiter
        self.task: asyncio.Task[None] | None = None
        self._work = work
        self._running = caller.loop.running
        self._context = contextvars.copy_context()
        self._context.run(context_of_caller.set, contextvars.copy_context())
        self._context.run(_caller.set, caller)

    def start(self) -> None:
        """Start it, on the event loop."""
        self._running.add(self)
        self.task = asyncio.get_running_loop().create_task(self._run(), context=self._context)

    async def _run(self) -> None:
        try:
            self.set_value(await self._work())
        except BaseException as error:  # noqa: BLE001 - raised where the thread waits
            self.set_error(error)
        self._running.discard(self)
        self.waiter.end()


class Caller:
    """One run, as the thread sees it that waits for it."""

    def __init__(self, loop: EventLoopThread) -> None:
        self.loop = loop
        self.jobs = JobQueue(loop)
        self._has_finished = False

    @property
    def waits(self) -> bool:
        """Whether the thread waits, or will wait again."""
        return not self._has_finished and self.loop.is_usable

    def finish(self) -> None:
        """The thread will not wait for this run again."""
        self._has_finished = True

    def wait_for(self, work: Callable[[], Awaitable[T]], interrupts: Interrupts) -> T:
        """Do `work` on the loop, and call here what it hands over; its value or exception.

        Ctrl-C cancels it, waits until it has ended, and raises KeyboardInterrupt; a second one does not wait.
        """
        awaited = _Awaited(work, self, CallerInbox())
        try:
            self._serve(awaited.waiter, functools.partial(self._begin, awaited), interrupts)
            interrupts.check()
        except BaseException as error:
            if self.loop.is_usable:
                self._cancel(awaited, interrupts)
                _set_response(awaited, error)
            raise
        return self._result(awaited)

    def leave(self, close: Callable[[], Awaitable[T]], interrupts: Interrupts, *, seconds: float = math.inf) -> T:
        """End the run by `close`, and wait until it has ended; but not after Ctrl-C, nor longer than these seconds."""
        awaited = _Awaited(close, self, CallerInbox(seconds))
        try:
            self._serve(awaited.waiter, functools.partial(self._begin_last, awaited), interrupts)
        except BaseException:
            self._abandon()
            raise
        return self._result(awaited)

    def close_dropped(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close a stream whose last reference was dropped. For finalizers, which may be called in any thread at any time."""
        if not self.waits:  # it ends by itself, or with the program
            return
        if self.loop.is_own_thread:
            self._abandon()
            self.loop.call(_Awaited(close, self, CallerInbox()).start)
            return
        # A finalizer cannot raise: Python would print KeyboardInterrupt, and drop it.
        with suppress(TimeoutError, KeyboardInterrupt), Interrupts() as interrupts:
            self.leave(close, interrupts, seconds=_CLOSE_SECONDS)

    def _serve(self, waiter: CallerInbox, begin: Callable[[], None], interrupts: Interrupts) -> None:
        """Call `begin` on the loop, and here what the run hands over, until the wait ends."""
        with interrupts.notifying(waiter.interrupt):
            self.loop.call(begin)
            while (item := waiter.next()) is not Wakeup.ENDED:
                if item is Wakeup.INTERRUPTED:
                    interrupts.check()
                else:
                    item.run(interrupts)
                    if not self.loop.is_usable:  # the function has forked, and this is the child; or the program ends
                        item.get()
                        self.loop.check()
                    self.loop.call(functools.partial(self.jobs.end, item))

    def _cancel(self, awaited: _Awaited[T], interrupts: Interrupts) -> None:
        waiter = CallerInbox()
        try:
            self._serve(waiter, functools.partial(self._begin_cancelling, awaited, waiter), interrupts)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        self.finish()
        self.loop.call(self.jobs.finish)

    def _result(self, awaited: _Awaited[T]) -> T:
        try:
            return awaited.get()
        except (asyncio.CancelledError, Withdrawn) as error:  # not by this thread, where it would mean nothing
            self.loop.check()
            cancelled = RunError("something that the run awaited was cancelled by other code; see __cause__")
            cancelled.response = getattr(error, "response", None)
            raise cancelled from error

    # --- on the loop ---

    def _begin(self, awaited: _Awaited[T]) -> None:
        awaited.start()
        # Its first step comes before this callback, and takes an event if there is one.
        self.loop.call_soon(functools.partial(self._serve_jobs, awaited))

    def _serve_jobs(self, awaited: _Awaited[T]) -> None:
        if not awaited.is_there:
            self.jobs.serve(awaited.waiter)

    def _begin_last(self, awaited: _Awaited[T]) -> None:
        self.jobs.leave()
        self._begin(awaited)

    def _begin_cancelling(self, awaited: _Awaited[T], waiter: CallerInbox) -> None:
        self.jobs.leave()
        # Not now: a task that is cancelled before its first step never enters its function, and would not end the wait.
        self.loop.call_soon(functools.partial(self._cancel_task, awaited, waiter))

    def _cancel_task(self, awaited: _Awaited[T], waiter: CallerInbox) -> None:
        if awaited.task is None or awaited.is_there:
            waiter.end()
            return
        awaited.waiter = waiter
        self.jobs.serve(waiter)
        awaited.task.cancel()


def _set_response(awaited: _Awaited[T], error: BaseException) -> None:
    """Give an interruption what the run has left, as every error of a run has it."""
    response = as_response(awaited.value) or getattr(awaited.error, "response", None)
    if response is not None and awaited.error is not error:
        set_attribute(error, "response", response)


class CallerThreadRunner:
    """The caller's thread as a `FunctionRunner`. A function that needs a thread of its own gets a worker thread."""

    runs_everything = True

    def __init__(self, threads: ThreadPool) -> None:
        self._threads = threads

    async def acquire(self, *, own_thread: bool = False) -> Slot:
        """A slot in the caller's thread, or in a worker thread."""
        return await self._threads.acquire() if own_thread else _CallerSlot()


class _CallerSlot:
    """A place in the caller's thread, which calls one function after another."""

    was_withdrawn = False

    async def run(self, work: Callable[[], T], **_: object) -> T:
        job = Job(work)
        try:
            await _caller.get().jobs.wait_for(job)
        except asyncio.CancelledError:
            if not job.is_there:  # otherwise the function was called, and has ended meanwhile
                raise
        finally:
            self.was_withdrawn = not job.has_begun
        return job.get()

    def release(self) -> None:
        """There is no token to give back."""

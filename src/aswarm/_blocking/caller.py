"""The caller's thread. It waits for a run, and meanwhile calls the plain functions of the run.

`CallerThreadRunner` is the `FunctionRunner` of such a run: it passes functions to this thread. `jobs` decides when they start.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from aswarm._runtime.backend import TaskResult
from aswarm._runtime.threads import FunctionRunner, Slot
from aswarm._values.agent import as_response
from aswarm._values.errors import RunError, set_attribute

from .event_loop import EventLoopThread
from .interrupts import Interrupts
from .jobs import CallerInbox, Job, JobQueue, Wakeup, Withdrawn, context_of_caller

T = TypeVar("T")

_caller: contextvars.ContextVar[Caller] = contextvars.ContextVar("aswarm_caller")


async def in_callers_thread(work: Callable[[], T], *, must_run: bool = False) -> T:
    """Call `work` in the thread that waits for this run.

    After the caller has left the run, work without `must_run` is not called, and this raises Withdrawn. Other work is called on
    the event loop if the caller will not wait again.
    """
    caller = _caller.get(None)
    if caller is None or (not caller.waits and (must_run or not caller.jobs.has_left)):
        return work()
    job = Job(work, must_run=must_run)
    await caller.jobs.wait_for(job)
    return job.get()


class _Awaited(TaskResult[T]):
    """The task that a thread waits for: a whole run, or its next event."""

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
        self._running.add(self)
        self.task = asyncio.get_running_loop().create_task(self._run(), context=self._context)

    async def _run(self) -> None:
        try:
            self.set_value(await self._work())
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self.set_error(error)
        self._running.discard(self)
        self.waiter.end()


class Caller:
    """The thread that waits for one run. It calls the methods, except the methods below "on the loop"."""

    def __init__(self, loop: EventLoopThread) -> None:
        self.loop = loop
        self.jobs = JobQueue(loop)
        self._has_finished = False

    @property
    def waits(self) -> bool:
        """Whether the thread waits for the run, or will wait for it again."""
        return not self._has_finished and self.loop.is_usable

    def finish(self) -> None:
        """Record that the thread will not wait for this run again."""
        self._has_finished = True

    def wait_for(self, work: Callable[[], Awaitable[T]], interrupts: Interrupts) -> T:
        """Do `work` on the loop, and call its plain functions in this thread.

        Return the value of `work`, or raise its exception. After Ctrl-C, this cancels the work, waits for its end, and raises
        KeyboardInterrupt. A second Ctrl-C ends this wait.
        """
        awaited = _Awaited(work, self, CallerInbox())
        try:
            self._serve(awaited.waiter, functools.partial(self._start, awaited), interrupts)
            interrupts.check()
        except BaseException as error:
            if self.loop.is_usable:
                waiter = CallerInbox()
                self._serve_last(waiter, functools.partial(self._start_cancelling, awaited, waiter), interrupts)
                response = as_response(awaited.value) or getattr(awaited.error, "response", None)
                if response is not None and awaited.error is not error:
                    set_attribute(error, "response", response)
            raise
        return self._result(awaited)

    def leave(self, close: Callable[[], Awaitable[T]], interrupts: Interrupts, *, seconds: float = math.inf) -> T:
        """Stop the run with `close`, and wait for its end, at most `seconds`. Ctrl-C ends the wait."""
        awaited = _Awaited(close, self, CallerInbox(seconds))
        self._serve_last(awaited.waiter, functools.partial(self._start_last, awaited), interrupts)
        return self._result(awaited)

    def close_dropped(self, close: Callable[[], Awaitable[None]], *, seconds: float = 2.0) -> None:
        """Close a stream after its last reference was dropped, and wait at most `seconds` for its end.

        A finalizer calls this, in any thread and at any time.
        """
        if not self.waits:  # the run has ended, or ends without this thread
            return
        if self.loop.is_own_thread:
            self._abandon()
            self.loop.call(_Awaited(close, self, CallerInbox()).start)
            return
        # A finalizer cannot raise an exception: Python would only print KeyboardInterrupt.
        with suppress(TimeoutError, KeyboardInterrupt), Interrupts() as interrupts:
            self.leave(close, interrupts, seconds=seconds)

    def _serve(self, waiter: CallerInbox, start: Callable[[], None], interrupts: Interrupts) -> None:
        """Call `start` on the loop. Then call the functions that the run passes to this thread, until the wait ends."""
        with interrupts.notifying(waiter.interrupt):
            self.loop.call(start)
            while (item := waiter.next()) is not Wakeup.ENDED:
                if item is Wakeup.INTERRUPTED:
                    interrupts.check()
                else:
                    item.run(interrupts)
                    # Either the function has forked and this is the child process, or the program ends.
                    if not self.loop.is_usable:
                        item.get()
                        self.loop.check()
                    self.loop.call(functools.partial(self.jobs.end, item))

    def _serve_last(self, waiter: CallerInbox, start: Callable[[], None], interrupts: Interrupts) -> None:
        """Do the same as `_serve`. After an interrupt, never wait for this run again."""
        try:
            self._serve(waiter, start, interrupts)
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        self.finish()
        self.loop.call(self.jobs.finish)

    def _result(self, awaited: _Awaited[T]) -> T:
        try:
            return awaited.get()
        except (asyncio.CancelledError, Withdrawn) as error:  # from other code: this thread has not cancelled the run
            self.loop.check()
            cancelled = RunError("other code has cancelled something that the run awaited; see __cause__")
            cancelled.response = getattr(error, "response", None)
            raise cancelled from error

    # --- on the loop ---

    def _start(self, awaited: _Awaited[T]) -> None:
        awaited.start()
        # The first step of the task runs before this callback. If an event is ready, this step reads it.
        self.loop.call_soon(functools.partial(self._serve_jobs, awaited))

    def _serve_jobs(self, awaited: _Awaited[T]) -> None:
        if not awaited.is_there:
            self.jobs.serve(awaited.waiter)

    def _start_last(self, awaited: _Awaited[T]) -> None:
        self.jobs.leave()
        self._start(awaited)

    def _start_cancelling(self, awaited: _Awaited[T], waiter: CallerInbox) -> None:
        self.jobs.leave()
        # Not at once: a task that is cancelled before its first step never runs its coroutine, which must end the wait.
        self.loop.call_soon(functools.partial(self._cancel_task, awaited, waiter))

    def _cancel_task(self, awaited: _Awaited[T], waiter: CallerInbox) -> None:
        if awaited.task is None or awaited.is_there:
            waiter.end()
            return
        awaited.waiter = waiter
        self.jobs.serve(waiter)
        awaited.task.cancel()


class CallerThreadRunner(FunctionRunner):
    """Runs functions in the caller's thread. A function that needs its own thread runs in a worker thread."""

    runs_everything = True

    async def acquire(self, *, own_thread: bool = False) -> Slot:
        """Return a slot in the caller's thread, or wait for a worker thread."""
        return await super().acquire() if own_thread else _CallerSlot()


class _CallerSlot:
    """A slot in the caller's thread. This thread calls one function after another."""

    was_withdrawn = False

    async def run(self, work: Callable[[], T], **_: object) -> T:
        job = Job(work)
        try:
            await _caller.get().jobs.wait_for(job)
        except asyncio.CancelledError:
            if not job.is_there:  # the function has no result yet
                raise
        finally:
            self.was_withdrawn = not job.has_started
        return job.get()

    def release(self) -> None:
        """Do nothing, because no limiter counts this slot."""

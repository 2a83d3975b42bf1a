"""The caller's thread. It waits for a run, and meanwhile calls the plain functions of the run.

`CallerThreadRunner` is the `FunctionRunner` of such a run: it passes functions to this thread, as jobs. A job starts only while
the thread waits for the run. Before the job, the thread gets all events that the run emitted earlier. After the thread has left
the run, no function, request or read starts. Only functions that close a response are still called.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from aswarm._runtime.backend import TaskResult, wait_shielded
from aswarm._runtime.threads import FunctionRunner, Slot
from aswarm._values.agent import as_response
from aswarm._values.errors import RunError, set_attribute

from .event_loop import EventLoopThread, Interrupts

T = TypeVar("T")

# If a signal arrives just before a thread starts to wait, Python handles the signal only after the wait. On Windows, before Python
# 3.14, no signal ends the wait for a lock (https://github.com/python/cpython/issues/125541). So waits are short.
_HEARTBEAT_SECONDS = 0.25

# A copy of the caller's context at the start of its current wait. A comparison shows which variables the run has set.
context_of_caller: contextvars.ContextVar[contextvars.Context] = contextvars.ContextVar("aswarm_context_of_caller")


class Withdrawn(BaseException):
    """The function was not called, because its caller has left the run. This exception ends the run."""


class Job(TaskResult[T]):
    """A function for the caller's thread, and its result. `must_run`: whether it is called even after the caller left the run."""

    def __init__(self, work: Callable[[], T], *, must_run: bool = False) -> None:
        super().__init__()
        self.must_run = must_run
        self.is_ready = False
        self.has_started = False
        self.is_over = asyncio.Event()
        self._work = work
        self._context = contextvars.copy_context()

    def run(self, interrupts: Interrupts) -> None:
        """Call the function, in the caller's thread."""
        self._run(functools.partial(interrupts.call, self._call))

    def run_here(self) -> None:
        """Call the function on the event loop, because no thread waits any more."""
        self._run(functools.partial(self._context.run, self._work))
        self.is_over.set()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self.set_value(call())
        except BaseException as error:  # noqa: BLE001 - the run handles it
            self.set_error(error)

    def _call(self) -> T:
        """Call the function in the context of the caller's thread, and add the variables that the run has set.

        After the call, these variables are reset, except variables that the function has changed.
        """
        self.has_started = True
        before = self._context[context_of_caller]
        on_top = [(variable, value) for variable, value in self._context.items() if before.get(variable) is not value]
        tokens = [(variable, value, variable.set(value)) for variable, value in on_top]
        try:
            return self._work()
        finally:
            for variable, value, token in reversed(tokens):
                if variable.get() is value:  # the function has not changed it
                    variable.reset(token)


class Wakeup(Enum):
    """Why a waiting thread wakes up without a job."""

    ENDED = "the task has ended"
    INTERRUPTED = "Ctrl-C"


class CallerInbox(SimpleQueue[Job[Any] | Wakeup]):
    """The queue of a thread that waits for the event loop."""

    def __init__(self, seconds: float = math.inf) -> None:
        super().__init__()
        self.has_ended = False
        self._deadline = time.monotonic() + seconds

    def next(self) -> Job[Any] | Wakeup:
        """Wait for a job or a `Wakeup`. Raises TimeoutError after the `seconds` of this inbox."""
        while time.monotonic() < self._deadline:
            with suppress(Empty):
                return self.get(timeout=_HEARTBEAT_SECONDS)
        raise TimeoutError

    def end(self) -> None:
        """End the wait. Call this on the event loop."""
        self.has_ended = True
        self.put(Wakeup.ENDED)

    def interrupt(self) -> None:
        """Wake the thread after Ctrl-C. A signal handler may call this."""
        self.put(Wakeup.INTERRUPTED)


class JobQueue:
    """The jobs of one run. All methods are called on the event loop."""

    def __init__(self, loop: EventLoopThread) -> None:
        self._loop = loop
        self.has_left = False
        self._jobs: deque[Job[Any]] = deque()
        self._current: Job[Any] | None = None
        self._waiter: CallerInbox | None = None

    async def wait_for(self, job: Job[Any]) -> None:
        """Queue the job and wait for its end. If the job has started, even a cancellation waits for its end.

        Raises Withdrawn if the job is not called, because the caller has left the run.
        """
        if not job.must_run and (self.has_left or not self._loop.is_usable):
            raise Withdrawn
        self._jobs.append(job)
        # The job becomes ready one step later. An event that was emitted just before has woken its reader, and the reader must
        # run first.
        self._loop.call_soon(functools.partial(self._make_ready, job))
        try:
            await job.is_over.wait()
        except BaseException:
            if job in self._jobs:
                self._jobs.remove(job)
            elif self._loop.is_usable:  # otherwise the program ends, and the function may never return
                await wait_shielded(job.is_over)
            raise

    def serve(self, waiter: CallerInbox) -> None:
        """Pass the jobs that are ready to this waiter, until its wait ends. Call this before the wait has a result."""
        self._waiter = waiter
        self._deliver()

    def leave(self) -> None:
        """Withdraw the jobs that need not run, and accept no more such jobs, because the caller has left the run."""
        self.has_left = True
        for job in self._take_all():
            if job.must_run:
                self._jobs.append(job)
                continue
            if not job.is_there:
                job.set_error(Withdrawn())
            job.is_over.set()

    def finish(self) -> None:
        """Call the jobs that must run. They are called on the event loop, because no thread waits any more."""
        if not self.has_left:
            self.leave()
        for job in self._take_all():
            job.run_here()

    def _take_all(self) -> list[Job[Any]]:
        jobs = [*self._jobs] if self._current is None else [self._current, *self._jobs]
        self._current = None
        self._jobs.clear()
        return jobs

    def end(self, job: Job[Any]) -> None:
        """Pass the result of the job to the run, and start the next job."""
        self._current = None
        job.is_over.set()
        if self._jobs:
            # Two steps later: first the task of this job runs, and then the reader of the event that this task emits.
            self._loop.call_soon(functools.partial(self._loop.call_soon, self._deliver))

    def _make_ready(self, job: Job[Any]) -> None:
        job.is_ready = True
        self._deliver()

    def _deliver(self) -> None:
        if self._current or self._waiter is None or self._waiter.has_ended:
            return
        if self._jobs and self._jobs[0].is_ready:
            self._current = self._jobs.popleft()
            self._waiter.put(self._current)


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

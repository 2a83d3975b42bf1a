"""Jobs: functions that a run passes to the thread of its caller.

A job starts only while the thread waits for the run. Before the job, the thread gets all events that the run emitted earlier.
After the thread has left the run, no function, request or read starts. Only functions that close a response are still called.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from aswarm._runtime.backend import TaskResult, wait_shielded

from .event_loop import EventLoopThread
from .interrupts import Interrupts

T = TypeVar("T")

# If a signal arrives just before a thread starts to wait, Python handles the signal only after the wait. So waits are short.
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

"""Functions that a run hands to the thread of its caller. Decides when each begins, and which never does.

A function begins while the thread waits for the run, and after the thread was given every event that the run emitted
before. Once the thread has left the run, no function, request or read begins; what closes a response is still called.
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

# Python notices a signal that comes just before a thread begins to wait only when that wait ends, so waits are short.
_HEARTBEAT_SECONDS = 0.25

# The context variables of the caller's thread when its current wait began. What the run has set on top differs.
context_of_caller: contextvars.ContextVar[contextvars.Context] = contextvars.ContextVar("aswarm_context_of_caller")


class Withdrawn(BaseException):
    """The function was not called, because its caller has left the run. Ends what is left of the run."""


class Job(TaskResult[T]):
    """Work for the caller's thread, and its result. `must_run`: also after the caller has left the run."""

    def __init__(self, work: Callable[[], T], *, must_run: bool = False) -> None:
        super().__init__()
        self.must_run = must_run
        self.is_ready = False
        self.has_begun = False
        self.is_over = asyncio.Event()
        self._work = work
        self._context = contextvars.copy_context()

    def run(self, interrupts: Interrupts) -> None:
        """Call it in the caller's thread."""
        self._run(functools.partial(interrupts.call, self._call))

    def run_here(self) -> None:
        """Call it on the event loop, because no thread waits any more."""
        self._run(functools.partial(self._context.run, self._work))
        self.is_over.set()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self.set_value(call())
        except BaseException as error:  # noqa: BLE001 - the run decides what it means
            self.set_error(error)

    def _call(self) -> T:
        """Call it in the context of its thread, where what it sets stays set, with what the run has set on top."""
        self.has_begun = True
        before = self._context[context_of_caller]
        on_top = [(variable, value) for variable, value in self._context.items() if before.get(variable) is not value]
        tokens = [(variable, value, variable.set(value)) for variable, value in on_top]
        try:
            return self._work()
        finally:
            for variable, value, token in reversed(tokens):
                if variable.get() is value:  # otherwise the function has changed it
                    variable.reset(token)

    def withdraw(self) -> None:
        """End it, on the event loop. If it was not called, it has failed."""
        if not self.is_there:
            self.set_error(Withdrawn())
        self.is_over.set()


class Wakeup(Enum):
    """What a waiting thread is told."""

    ENDED = "what you wait for is there"
    INTERRUPTED = "Ctrl-C has come"


class CallerInbox:
    """A thread that waits for the event loop, and its inbox."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.has_ended = False
        self._deadline = time.monotonic() + seconds
        self._inbox: SimpleQueue[Job[Any] | Wakeup] = SimpleQueue()

    def next(self) -> Job[Any] | Wakeup:
        """Wait for a job or a signal. Raises TimeoutError once the seconds are over."""
        while time.monotonic() < self._deadline:
            with suppress(Empty):
                return self._inbox.get(timeout=_HEARTBEAT_SECONDS)
        raise TimeoutError

    def give(self, job: Job[Any]) -> None:
        """Have the thread call this."""
        self._inbox.put(job)

    def end(self) -> None:
        """End the wait. To be called on the event loop."""
        self.has_ended = True
        self._inbox.put(Wakeup.ENDED)

    def interrupt(self) -> None:
        """Tell the thread that Ctrl-C has come. May be called by a signal handler."""
        self._inbox.put(Wakeup.INTERRUPTED)


class JobQueue:
    """The jobs of one run. All of this is called on the event loop."""

    def __init__(self, loop: EventLoopThread) -> None:
        self._loop = loop
        self.has_left = False
        self._jobs: deque[Job[Any]] = deque()
        self._given: Job[Any] | None = None
        self._waiter: CallerInbox | None = None

    async def do(self, job: Job[T]) -> T:
        """Queue the job and wait for its result; see `wait_for`."""
        await self.wait_for(job)
        return job.get()

    async def wait_for(self, job: Job[Any]) -> None:
        """Queue the job and wait until it has ended. If this is cancelled, it waits for a job that has begun, and raises then.

        Raises Withdrawn if it is not called, because the caller has left.
        """
        if not job.must_run and (self.has_left or not self._loop.is_usable):
            raise Withdrawn
        self._jobs.append(job)
        # Not now: an event that was emitted just before has woken its reader, which comes before this callback.
        self._loop.call_soon(functools.partial(self._make_ready, job))
        try:
            await job.is_over.wait()
        except BaseException:
            if job in self._jobs:
                self._jobs.remove(job)
            elif self._loop.is_usable:  # at the end of the program, a daemon thread is left in its function
                await wait_shielded(job.is_over)
            raise

    def serve(self, waiter: CallerInbox) -> None:
        """Give this waiter what is ready, until its wait ends. Nothing that it waits for may be there already."""
        self._waiter = waiter
        self._give()

    def leave(self) -> None:
        """The caller has left the run: call only what must run, of what waits and from here on."""
        self.has_left = True
        for job in self._take_all():
            if job.must_run:
                self._jobs.append(job)
            else:
                job.withdraw()

    def finish(self) -> None:
        """Call here what the run still calls to close something, because no thread waits any more."""
        if not self.has_left:
            self.leave()
        for job in self._take_all():
            job.run_here()

    def _take_all(self) -> list[Job[Any]]:
        jobs = [*self._jobs] if self._given is None else [self._given, *self._jobs]
        self._given = None
        self._jobs.clear()
        return jobs

    def end(self, job: Job[Any]) -> None:
        """Hand the result to the run."""
        self._given = None
        job.is_over.set()
        if self._jobs:
            # First comes the task of this function, and then the reader of the event that it emits.
            self._loop.call_soon(functools.partial(self._loop.call_soon, self._give))

    def _make_ready(self, job: Job[Any]) -> None:
        job.is_ready = True
        self._give()

    def _give(self) -> None:
        if self._given or self._waiter is None or self._waiter.has_ended:
            return
        if self._jobs and self._jobs[0].is_ready:
            self._given = self._jobs.popleft()
            self._waiter.give(self._given)

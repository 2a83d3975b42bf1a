"""The thread of the caller, who waits for a run: what blocks is carried out there, and not on the event loop.

`Caller` is the waiting side: it has the run carried on by the loop, and does what the run hands over. `CallersThread` is
the `Workplace` of such a run. Which functions are handed over is decided where they are called.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio

from ._backend import outlast
from ._interrupts import Interrupts
from ._shared_loop import SharedLoop
from ._threads import Lease, ThreadPool

T = TypeVar("T")

_caller: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("aswarm_caller", default=None)


async def in_callers_thread(work: Callable[[], T]) -> T:
    """Call `work` in the thread that waits for this run; where nobody waits any more, here."""
    caller = _caller.get()
    return work() if caller is None or caller.is_gone else await caller.do(_Job(work))


class _Job(Generic[T]):
    """A function that was handed over."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._context = contextvars.copy_context()
        self.outcome: Future[T] = Future()
        self.is_over = anyio.Event()

    def carry_out(self, interrupts: Interrupts) -> None:
        """Call it, in the caller's thread and the run's context."""
        try:
            with interrupts.let_through():
                value = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 - the run decides what it means
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(value)

    def end(self) -> None:
        """Tell the run, on its loop. What was interrupted before it began has failed."""
        if not self.outcome.done():
            self.outcome.set_exception(KeyboardInterrupt())
        self.is_over.set()


class _Errand(Generic[T]):
    """Something that the run is to do: all of it, or the way to its next event."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self.outcome: Future[T] = Future()
        self._task: asyncio.Task[None] | None = None

    def begin(self, on_end: Callable[[], None]) -> None:
        """Begin it on the loop, unless it has begun, or was cancelled before."""
        if self._task is None and not self.outcome.done():
            self._task = asyncio.get_running_loop().create_task(self._carry_out())
            self._task.add_done_callback(lambda _: on_end())

    async def _carry_out(self) -> None:
        try:
            self.outcome.set_result(await self._work())
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            self.outcome.set_exception(error)

    async def cancel(self) -> None:
        """Cancel it, on the loop."""
        if self._task is not None:
            self._task.cancel()
        else:
            self.outcome.set_exception(asyncio.CancelledError())


class Caller:
    """One run, as the thread sees it that waits for it."""

    def __init__(self, loop: SharedLoop) -> None:
        self.loop = loop
        self.is_gone = False
        self._jobs: deque[_Job[Any]] = deque()
        self._given: _Job[Any] | None = None
        self._news = asyncio.Event()

    # --- in the caller's thread ---

    def wait_for(self, work: Callable[[], Awaitable[T]]) -> T:
        """Have `work` done on the loop, carrying out here what it hands over; its value or exception.

        Ctrl-C cancels it, waits until it has ended, and raises KeyboardInterrupt; a second one does not wait.
        """
        errand = _Errand(work)
        with Interrupts() as interrupts:
            try:
                self._serve(errand, interrupts)
                interrupts.check()
            except BaseException as error:
                self._end(errand, interrupts)
                _hand_response(errand.outcome, error)
                raise
        return errand.outcome.result()

    def _serve(self, errand: _Errand[Any], interrupts: Interrupts) -> None:
        context = contextvars.copy_context()
        context.run(_caller.set, self)
        next_job = functools.partial(self._next_job, errand)
        while (job := context.run(self.loop.run, next_job, interrupts)) is not None:
            job.carry_out(interrupts)

    def _end(self, errand: _Errand[Any], interrupts: Interrupts) -> None:
        try:
            self.loop.run(errand.cancel, interrupts)
            self._serve(errand, interrupts)
        except BaseException:
            self.is_gone = True  # nobody waits any more
            raise

    # --- on the loop ---

    async def _next_job(self, errand: _Errand[Any]) -> _Job[Any] | None:
        """The next function for the caller, or None when the errand is over."""
        if self._given is not None:
            self._given.end()
            self._given = None
        errand.begin(self._news.set)
        while not errand.outcome.done():
            self._news.clear()
            if not self._jobs:
                await self._news.wait()
                continue
            await asyncio.sleep(0)  # what the run told before it handed over is told first
            if not errand.outcome.done() and self._jobs:
                self._given = self._jobs.popleft()
                return self._given
        return None

    async def do(self, job: _Job[T]) -> T:
        """Hand the function over and wait for what it returns. A cancelled wait waits for one that has begun."""
        self._jobs.append(job)
        self._news.set()
        try:
            await job.is_over.wait()
        except BaseException:
            if job in self._jobs:
                self._jobs.remove(job)
            else:
                await outlast(job.is_over)
            raise
        return job.outcome.result()


def _hand_response(outcome: Future[Any], error: BaseException) -> None:
    """Give an interruption what the run has left, as any error of a run has it."""
    left = outcome.exception() if outcome.done() else None
    response = getattr(left, "response", None)
    if response is not None and left is not error:
        with suppress(Exception):  # not every exception takes an attribute
            setattr(error, "response", response)  # noqa: B010 - no attribute that type checkers know


class CallersThread:
    """The thread of the caller as a `Workplace`. What must be apart from it goes to worker threads."""

    takes_all = True

    def __init__(self, threads: ThreadPool) -> None:
        self._threads = threads

    async def lease(self, *, apart: bool = False) -> Lease:
        """A place in the caller's thread, or a worker thread."""
        return await self._threads.lease() if apart else _CallersLease()


class _CallersLease:
    async def run(self, work: Callable[[], T], **_: object) -> T:
        return await in_callers_thread(work)

    def leave(self) -> None:
        """There is no token to give back."""

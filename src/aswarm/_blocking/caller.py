"""The thread of the caller, who waits for a run: what blocks is carried out there, and not on the event loop.

`Caller` is the waiting side: it has the run carried on by the loop, and does what the run hands over. `CallerThreadRunner` is
the `FunctionRunner` of such a run. Which functions are handed over is decided where they are called.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from aswarm._agent import Response
from aswarm._errors import RunError, set_attribute
from aswarm._runtime.backend import TaskResult, wait_shielded
from aswarm._runtime.threads import Slot, ThreadPool

from .event_loop import SharedLoop, Visit
from .interrupts import Interrupts

T = TypeVar("T")

_caller: contextvars.ContextVar[Caller | None] = contextvars.ContextVar("aswarm_caller", default=None)


async def in_callers_thread(work: Callable[[], T]) -> T:
    """Call `work` in the thread that waits for this run; where nobody waits any more, here."""
    caller = _caller.get()
    return work() if caller is None or caller.is_gone else await caller.do(_Job(work))


async def for_nobody(work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` for a run whose caller is gone, whatever run the current code belongs to."""
    _caller.set(None)
    await work()


class _Job(TaskResult[T]):
    """A function that was handed over."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self._work = work
        self._context = contextvars.copy_context()
        self.is_over = anyio.Event()

    def carry_out(self, interrupts: Interrupts) -> None:
        """Call it, in the caller's thread and the run's context."""
        try:
            self.set_value(interrupts.call(functools.partial(self._context.run, self._work)))
        except BaseException as error:  # noqa: BLE001 - the run decides what it means
            self.set_error(error)

    def end(self) -> None:
        """Tell the run, on its loop. What was interrupted before it began has failed."""
        if not self.is_there:
            self.set_error(KeyboardInterrupt())
        self.is_over.set()


class _Errand(TaskResult[T]):
    """Something that the run is to do: all of it, or the way to its next event."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        super().__init__()
        self._work = work
        self.is_unwanted = False
        self.is_cancelled = False
        self.task: asyncio.Task[None] | None = None

    async def carry_out(self) -> None:
        """Do it, in a task of its own."""
        try:
            self.set_value(await self._work())
        except BaseException as error:  # noqa: BLE001 - raised where the caller waits
            self.set_error(error)


class Caller:
    """One run, as the thread sees it that waits for it."""

    def __init__(self, loop: SharedLoop) -> None:
        self.loop = loop
        self.is_gone = False
        self._jobs: deque[_Job[Any]] = deque()
        self._given: _Job[Any] | None = None
        self._waiting: tuple[_Errand[Any], Visit] | None = None

    # --- in the caller's thread ---

    def wait_for(self, work: Callable[[], Awaitable[T]], interrupts: Interrupts) -> T:
        """Have `work` done on the loop, carrying out here what it hands over; its value or exception.

        Ctrl-C cancels it, waits until it has ended, and raises KeyboardInterrupt; a second one does not wait.
        """
        errand = _Errand(work)
        try:
            self._serve(errand, interrupts)
            interrupts.check()
        except BaseException as error:
            if self.loop.is_usable:
                self._end(errand, interrupts)
                _hand_response(errand, error)
            raise
        return self._result(errand)

    def _result(self, errand: _Errand[T]) -> T:
        try:
            return errand.get()
        except asyncio.CancelledError as error:  # not by this thread, where it would mean nothing
            self.loop.check()
            cancelled = RunError("something that the run awaited was cancelled")
            cancelled.response = getattr(error, "response", None)
            raise cancelled from error

    def _serve(self, errand: _Errand[Any], interrupts: Interrupts) -> None:
        context = contextvars.copy_context()
        context.run(_caller.set, self)
        resume = functools.partial(self._resume, errand)
        context.run(self.loop.wait, resume, interrupts)
        while (job := self._given) is not None:
            job.carry_out(interrupts)
            if not self.loop.is_usable:  # the function has forked, and this is the child
                job.get()
                self.loop.check()
            context.run(self.loop.wait, resume, interrupts)

    def _end(self, errand: _Errand[Any], interrupts: Interrupts) -> None:
        errand.is_unwanted = True
        try:
            self._serve(errand, interrupts)
        except BaseException:
            self.is_gone = True  # nobody waits any more
            raise

    # --- on the loop ---

    def _resume(self, errand: _Errand[Any], visit: Visit) -> None:
        """Go on with the errand until it is over or there is a job for the caller; then end the visit."""
        if self._given is not None:
            self._given.end()
            self._given = None
        if errand.task is None and not errand.is_unwanted:
            errand.task = self.loop.create_task(errand.carry_out())
            errand.task.add_done_callback(functools.partial(self._over, errand))
        if errand.task is None or errand.is_there:
            visit.end()
            return
        self._waiting = (errand, visit)
        if errand.is_unwanted and not errand.is_cancelled:
            errand.is_cancelled = errand.task.cancel()
        if self._jobs:
            self._tell_soon()

    def _tell_soon(self) -> None:
        # Not at once: what the run told before it handed the function over is told first.
        self.loop.call_soon(self._give)

    def _give(self) -> None:
        if self._jobs and self._waiting is not None and not self._waiting[0].is_there:
            self._given = self._jobs.popleft()
            self._end_visit(self._waiting[1])

    def _over(self, errand: _Errand[Any], _: asyncio.Task[None]) -> None:
        if not errand.is_there:  # cancelled before it began
            errand.set_error(asyncio.CancelledError())
        if self._waiting is not None and self._waiting[0] is errand:
            self._end_visit(self._waiting[1])

    def _end_visit(self, visit: Visit) -> None:
        self._waiting = None
        visit.end()

    async def do(self, job: _Job[T]) -> T:
        """Hand the function over and wait for what it returns. A cancelled wait waits for one that has begun."""
        self._jobs.append(job)
        self._tell_soon()
        try:
            await job.is_over.wait()
        except BaseException:
            if job in self._jobs:
                self._jobs.remove(job)
            elif self.loop.is_usable:  # at the end of the program, a daemon thread is left where it is
                await wait_shielded(job.is_over)
            raise
        return job.get()


def _hand_response(errand: _Errand[Any], error: BaseException) -> None:
    """Give an interruption what the run has left, as any error of a run has it."""
    response = errand.value if isinstance(errand.value, Response) else getattr(errand.error, "response", None)
    if response is not None and errand.error is not error:
        set_attribute(error, "response", response)


class CallerThreadRunner:
    """The thread of the caller as a `FunctionRunner`. What must be apart from it goes to worker threads."""

    runs_everything = True

    def __init__(self, threads: ThreadPool) -> None:
        self._threads = threads

    async def acquire(self, *, own_thread: bool = False) -> Slot:
        """A place in the caller's thread, or a worker thread."""
        return await self._threads.acquire() if own_thread else _CallersLease()


class _CallersLease:
    async def run(self, work: Callable[[], T], **_: object) -> T:
        return await in_callers_thread(work)

    def release(self) -> None:
        """There is no token to give back."""

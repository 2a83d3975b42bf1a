"""Additions to anyio for asyncio and trio: tasks without a parent, shielded waits, values per event loop or process."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, ref

import anyio
import anyio.lowlevel
import sniffio

from aswarm._values.settings import Limiter

T = TypeVar("T")

# Strong references to running tasks, because asyncio itself has only weak references to them. Without them, a task may be
# collected before its end: https://docs.python.org/3/library/asyncio-task.html#asyncio.create_task
_tasks: set[asyncio.Task[None]] = set()


def _trio() -> Any:
    """Return `trio.lowlevel` if trio runs, or None. No import is needed: if trio runs, the program has imported trio."""
    return sys.modules["trio"].lowlevel if sniffio.current_async_library() == "trio" else None


def current_loop() -> object:
    """Return an object that identifies the running event loop. The object is hashable, and weak references to it work."""
    trio = _trio()
    return trio.current_trio_token() if trio else asyncio.get_running_loop()


async def raise_if_own(cancellation: BaseException) -> None:
    """Raise the cancellation if the current task is cancelled. Otherwise other code raised it, and this function returns."""
    # A function may await a task that other code has cancelled, and libraries raise new cancellations in place of the caught one
    # (asyncpg: https://github.com/agronholm/anyio/pull/606). Without this check, a failed tool would look like a cancelled run.
    # asyncio counts the cancellations of a task: https://docs.python.org/3/library/asyncio-task.html#asyncio.Task.cancelling
    task = None if _trio() else asyncio.current_task()
    if task is not None and task.cancelling():
        raise cancellation
    await anyio.lowlevel.checkpoint()


def scheduler() -> Callable[..., object]:
    """Return a function that schedules a callback with arguments on the running event loop. Any thread may call it.

    It raises RuntimeError after the loop was closed.
    """
    if sniffio.current_async_library() != "trio":  # not `_trio`, because each transaction of a database calls this
        return asyncio.get_running_loop().call_soon_threadsafe
    run_soon: Callable[..., object] = _trio().current_trio_token().run_sync_soon
    return run_soon


Work = Callable[[], Coroutine[Any, Any, None]]


def _start_task(work: Work) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


def _start_system_task(work: Work) -> None:
    with suppress(RuntimeError):  # trio.run is about to end: it starts no more tasks, and closes open generators itself
        _trio().spawn_system_task(work)


def task_spawner() -> Callable[[Work], object]:
    """Return a function that starts a task on the running event loop. Any thread and any finalizer may call it.

    It raises RuntimeError after the loop was closed.
    """
    return functools.partial(scheduler(), _start_system_task if _trio() else _start_task)


def call_later(seconds: float, call: Callable[[], None]) -> Callable[[], object]:
    """Call a function on the running event loop after some seconds. Return a function that cancels this call."""
    if not _trio():
        return asyncio.get_running_loop().call_later(seconds, call).cancel
    scope = anyio.CancelScope()

    async def wait() -> None:
        with scope:
            await anyio.sleep(seconds)
            call()

    _start_system_task(wait)
    return scope.cancel


async def wait_shielded(event: anyio.Event | asyncio.Event) -> None:
    """Wait for the event. If the waiting task is cancelled, wait nevertheless, and raise the cancellation afterwards."""
    interrupted: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not event.is_set():
            try:
                await event.wait()
            except anyio.get_cancelled_exc_class() as error:  # a plain task.cancel() ignores the shield
                interrupted = error
    if interrupted is not None:
        raise interrupted


class TaskResult(Generic[T]):
    """The result of a task: a value or an exception. `is_there`: whether one of them is set."""

    def __init__(self) -> None:
        self.is_there = False
        self.error: BaseException | None = None
        self.value: T | None = None

    def set_value(self, value: T) -> None:
        self.value, self.is_there = value, True

    def set_error(self, error: BaseException) -> None:
        self.error, self.is_there = error, True

    def get(self) -> T:
        """Return the value, or raise the exception."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # its traceback refers to this frame: avoid a reference cycle
        return self.value  # type: ignore[return-value]  # pyright: ignore[reportReturnType] - set if there is no error


class BackgroundTask(Generic[T]):
    """A task without a parent. It runs until its work ends, or `stop` is called.

    A plain `task.cancel()` of the caller's task does not cancel it. `stop` cancels an anyio scope. Work in a shielded scope,
    such as the wait for a worker thread, is not cancelled, and `stop` waits for it.
    """

    def __init__(self, work: Callable[[], Awaitable[T]], on_end: Callable[[], object] = lambda: None) -> None:
        self._work = work
        self._on_end = on_end
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._outcome = TaskResult[T]()
        # The task is outside of the caller's cancel scopes, and has a copy of the caller's contextvars.
        if trio := _trio():
            trio.spawn_system_task(self._run, context=contextvars.copy_context())
        else:
            _start_task(self._run).add_done_callback(self._end_unentered)

    async def _run(self) -> None:
        try:
            with self._scope:
                self._outcome.set_value(await self._work())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._outcome.set_error(error)
        finally:
            self._end()

    def _end_unentered(self, _: object) -> None:
        # If a task is cancelled before its first step, for example at the end of `asyncio.run`, asyncio never enters it. Trio
        # enters every task.
        if not self._ended.is_set():
            self._outcome.set_error(asyncio.CancelledError())
            self._end()

    def _end(self) -> None:
        self._on_end()
        self._ended.set()

    def cancel(self) -> None:
        """Cancel the work."""
        self._scope.cancel()

    async def stop(self) -> None:
        """Cancel the work and wait for its end, even if the waiting task is cancelled."""
        self._scope.cancel()
        await wait_shielded(self._ended)

    async def join(self) -> T:
        """Wait for the work, and return its value or raise its exception. Cancelling this call does not stop the work."""
        await self._ended.wait()
        return self._outcome.get()

    async def result(self) -> T:
        """Wait for the work, and return its value or raise its exception. Cancelling this call stops the work."""
        try:
            await self._ended.wait()
        finally:
            await self.stop()
        return self._outcome.get()


class HiddenGenerators(Generic[T]):
    """Awaits one step of a run. The event loop does not get to know the async generators that this step starts.

    At shutdown, asyncio concurrently closes all generators that it knows. Nested generators then fail with "already running".
    So asyncio gets to know only the outermost generator, which closes the inner generators in order. The hooks are described in
    PEP 525, and the reasons why no event loop can close a collected generator well in
    https://github.com/python-trio/trio/issues/265

    `finalize=False`: for unfinished generators of other code that need no closing. The event loop then starts no task to
    close them.
    """

    def __init__(self, step: Awaitable[T], *, finalize: bool = True) -> None:
        self._step = step
        self._hooks: dict[str, Callable[[Any], None] | None] = {"firstiter": None}
        if not finalize:  # a hook that does nothing: without any hook, Python itself would close a collected generator
            self._hooks["finalizer"] = lambda _: None

    def __await__(self) -> Generator[Any, Any, T]:
        inner: Any = self._step.__await__()
        resume, value = inner.send, None
        while True:
            hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(**self._hooks)
            try:
                waits_for = resume(value)
            except StopIteration as done:
                result: T = done.value
                return result
            finally:
                sys.set_asyncgen_hooks(*hooks)
            try:
                resume, value = inner.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001 - thrown into the step, which handles or raises it
                resume, value = inner.throw, error


class PerLoop(Generic[T]):
    """One value for each event loop. It is created at the first use in the loop, and removed together with the loop."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: WeakKeyDictionary[object, T] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def get(self) -> T:
        loop = current_loop()
        with self._lock:
            if loop not in self._values:
                # Connections refer to their event loop, so a value would keep its loop alive. Remove values of closed loops.
                for other in list(self._values):
                    if isinstance(other, asyncio.AbstractEventLoop) and other.is_closed():
                        del self._values[other]
                self._values[loop] = self._make()
            return self._values[loop]

    def find(self) -> T | None:
        """Return the value of the running loop, or None if it has no value or no loop runs."""
        with suppress(RuntimeError):
            return self._values.get(current_loop())
        return None

    def pop(self) -> T | None:
        """Remove and return the value of the running loop, or None if it has no value."""
        with self._lock:
            return self._values.pop(current_loop(), None)


class PerProcess(Generic[T]):
    """One value for each process, created at the first use. A forked child does not use the value of its parent."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        # By process id. In a child, the entry of the parent stays, so that the child never collects and closes this value.
        self._values: dict[int, T] = {}
        # By process id, like `_values`. The lock of the parent may have been locked during the fork, so a child needs a new lock.
        self._locks: dict[int, threading.Lock] = {}

    def get(self) -> T:
        process = os.getpid()
        with self._locks.setdefault(process, threading.Lock()):
            if process not in self._values:
                self._values[process] = self._make()
            return self._values[process]

    def find(self) -> T | None:
        """Return the value of this process, or None if it has no value."""
        return self._values.get(os.getpid())

    def pop(self) -> T | None:
        """Remove and return the value of this process, or None if it has no value."""
        process = os.getpid()
        with self._locks.setdefault(process, threading.Lock()):
            return self._values.pop(process, None)


# A limiter in a decorator is one object for all event loops of the program. But anyio's limiters are not thread-safe, and
# work with one backend only. So the first event loop uses the limiter itself, and each other loop uses a new limiter with the
# same number of tokens.


@dataclass(slots=True)
class _Loops:
    first: ref[object]
    others: WeakKeyDictionary[object, Limiter] = field(default_factory=WeakKeyDictionary[object, Limiter])


_loops: WeakKeyDictionary[Limiter, _Loops] = WeakKeyDictionary()
_lock = threading.Lock()


def _limiter_here(limiter: Limiter) -> Limiter:
    """Return the limiter to use on this event loop: the given limiter, or the copy for this loop."""
    if not isinstance(limiter, anyio.CapacityLimiter):
        return limiter  # not from anyio: it must support several event loops itself
    loop = current_loop()
    with _lock:
        loops = _loops.setdefault(limiter, _Loops(ref(loop)))
        if loops.first() is loop:
            return limiter
        if loop not in loops.others:
            loops.others[loop] = anyio.CapacityLimiter(limiter.total_tokens)
        return loops.others[loop]


def hold_token(limiter: Limiter | None) -> AbstractAsyncContextManager[None]:
    """Return a context manager that holds a token of the limiter. Without a limiter, it does nothing."""
    return nullcontext() if limiter is None else _hold(_limiter_here(limiter))


@asynccontextmanager
async def _hold(limiter: Limiter) -> AsyncGenerator[None, None]:
    # The borrower is a new object for each call, not the task. So a tool that calls itself through a nested run can borrow
    # a second token.
    borrower = object()
    await limiter.acquire_on_behalf_of(borrower)
    try:
        yield
    finally:
        limiter.release_on_behalf_of(borrower)

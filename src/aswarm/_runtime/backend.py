"""What anyio does not have for both backends: the identity of a loop, tasks without a parent, waits to the end.

Never imports trio: if the current loop is trio's, trio is loaded already.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import sniffio

T = TypeVar("T")

# asyncio itself keeps only weak references to tasks.
_tasks: set[asyncio.Task[None]] = set()


def _on_trio() -> bool:
    return sniffio.current_async_library() == "trio"


def current_loop() -> object:
    """An object that stands for the running event loop: hashable, and weakly referable."""
    return _trio().current_trio_token() if _on_trio() else asyncio.get_running_loop()


def _trio() -> Any:
    return sys.modules["trio"].lowlevel


async def raise_if_own(cancellation: BaseException) -> None:
    """Raise this cancellation, or another one, if the current task is cancelled; else other code has raised it."""
    task = None if _on_trio() else asyncio.current_task()
    if task is not None and task.cancelling():
        raise cancellation
    await anyio.lowlevel.checkpoint()


def scheduler() -> Callable[[Callable[[], None]], object]:
    """A function that schedules a callback on this loop from any thread. It raises RuntimeError once the loop is closed."""
    if _on_trio():
        run_soon: Callable[[Callable[[], None]], object] = _trio().current_trio_token().run_sync_soon
        return run_soon
    return asyncio.get_running_loop().call_soon_threadsafe


Work = Callable[[], Coroutine[Any, Any, None]]


def _spawn(work: Work, on_done: Callable[[], object]) -> None:
    """Start a task outside of the caller's cancel scopes, with a copy of the caller's context variables.

    `on_done` is called when an asyncio task is done, even if its work was never entered: asyncio does not enter a task
    that is cancelled before its first step, as at the end of `asyncio.run`. Trio enters every task, and does not call it.
    """
    if _on_trio():
        _trio().spawn_system_task(work, context=contextvars.copy_context())
    else:
        _start_task(work).add_done_callback(lambda _: on_done())


def _start_task(work: Work) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


def _start_system_task(work: Work) -> None:
    with suppress(RuntimeError):  # trio.run is ending: it starts no task any more, and closes what is open itself
        _trio().spawn_system_task(work)


def task_spawner() -> Callable[[Work], object]:
    """A function that starts a task on this loop from any thread, and from a finalizer.

    It raises RuntimeError once the loop is closed.
    """
    if _on_trio():
        return functools.partial(_trio().current_trio_token().run_sync_soon, _start_system_task)
    call_soon: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
    return functools.partial(call_soon, _start_task)


async def wait_shielded(event: anyio.Event | asyncio.Event) -> None:
    """Wait for the event even if the waiting task is cancelled meanwhile; the cancellation is raised afterwards."""
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
    """A value or an exception, once it is there."""

    def __init__(self) -> None:
        self.is_there = False
        self.error: BaseException | None = None
        self.value: T | None = None

    def set_value(self, value: T) -> None:
        self.value = value
        self.is_there = True

    def set_error(self, error: BaseException) -> None:
        self.error = error
        self.is_there = True

    def get(self) -> T:
        """The value. Raises the exception."""
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # its traceback refers to this frame
        return self.value  # type: ignore[return-value]  # pyright: ignore[reportReturnType] - set if there is no error


class BackgroundTask(Generic[T]):
    """Work in a task of its own, which ends by itself or by `stop`.

    A plain `task.cancel()` of the caller's task does not reach it. `stop` cancels by an anyio scope, which respects
    shields, and so waits for worker threads.
    """

    def __init__(self, work: Callable[[], Awaitable[T]], on_end: Callable[[], object] = lambda: None) -> None:
        self._work = work
        self._on_end = on_end
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._outcome = TaskResult[T]()
        _spawn(self._run, self._end_unentered)

    async def _run(self) -> None:
        try:
            with self._scope:
                self._outcome.set_value(await self._work())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._outcome.set_error(error)
        finally:
            self._end()

    def _end_unentered(self) -> None:
        if not self._ended.is_set():
            self._outcome.set_error(asyncio.CancelledError())
            self._end()

    def _end(self) -> None:
        self._on_end()
        self._ended.set()

    async def stop(self) -> None:
        """Cancel the work and wait until it has ended, even if the waiting task is cancelled meanwhile."""
        self._scope.cancel()
        await wait_shielded(self._ended)

    async def result(self) -> T:
        """Wait for the work. Returns its value, or raises its exception. If this is cancelled, it stops the work."""
        try:
            await self._ended.wait()
        finally:
            await self.stop()
        return self._outcome.get()


class HiddenGenerators(Generic[T]):
    """Awaits a step, and hides the async generators that it begins from the event loop.

    At shutdown asyncio closes every generator it has seen, all at the same time; nested ones then fail with "already
    running". So only the outermost is known to the loop, and it closes the inner ones in order. `finalize=False` is for
    generators of other code that are dropped half read, and whose resources are freed in another way: the event loop
    then starts no task to close them.
    """

    def __init__(self, step: Awaitable[T], *, finalize: bool = True) -> None:
        self._step = step
        self._hooks: dict[str, Any] = {"firstiter": None, **({} if finalize else {"finalizer": _do_nothing})}

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
            except BaseException as error:  # noqa: BLE001 - thrown into the step, which decides
                resume, value = inner.throw, error


def _do_nothing(_: object) -> None:
    """Stand in for a finalizer: without one, Python would close the generator as soon as it is collected."""


class PerLoop(Generic[T]):
    """One value for each event loop, made on first use there and forgotten with the loop."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._values: WeakKeyDictionary[object, T] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def get(self) -> T:
        """The value of the running loop."""
        loop = current_loop()
        with self._lock:
            if loop not in self._values:
                self._forget_closed()
                self._values[loop] = self._make()
            return self._values[loop]

    def _forget_closed(self) -> None:
        # The connections of a client refer to their loop, so a loop would be kept here by its own value.
        for loop in [known for known in self._values if isinstance(known, asyncio.AbstractEventLoop)]:
            if loop.is_closed():
                del self._values[loop]

    def pop(self) -> T | None:
        """Forget and return the value of the running loop, or None if it has no value."""
        with self._lock:
            return self._values.pop(current_loop(), None)

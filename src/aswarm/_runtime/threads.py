"""Runs plain functions in a limited number of worker threads.

The module decides when a function may start in a thread, and when its place is free again. `Swarm` has a subclass of
`FunctionRunner` that calls functions in the thread of its caller.
"""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

import anyio

from . import seams
from .backend import scheduler

T = TypeVar("T")

# The nesting depth of tool calls. Each depth has its own limit of threads. With a common limit, a run inside a tool could wait
# for the thread of its outer run, which waits for the inner run: a deadlock.
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("aswarm_depth", default=0)


def enter_tool() -> None:
    """Increase the nesting depth of the current task."""
    _depth.set(_depth.get() + 1)


class DeadlinePassed(Exception):  # noqa: N818 - named after the event
    """The function did not return before the deadline. It may still be running."""


class Slot(Protocol):
    """A place for one function in the worker threads. The code that has acquired the slot must `release` it."""

    @property
    def was_withdrawn(self) -> bool:
        """Whether the function will never be called, although `run` was called."""
        ...

    async def run(self, work: Callable[[], T], *, deadline: float = math.inf, abandon_on_cancel: bool = False) -> T:
        """Run `work` in the slot. Raises DeadlinePassed at the deadline (in the clock of the event loop).

        Without `abandon_on_cancel`, a cancelled caller waits for the end of the function. A plain `task.cancel()` would
        interrupt this wait, so call this method in a separate task.
        """
        ...

    def release(self) -> None:
        """Release the slot. The caller no longer needs the result of the function."""
        ...


class FunctionRunner:
    """The worker threads of one swarm on one event loop. Each depth of nested runs has at most `size` threads.

    `runs_everything`: whether it also runs functions that never block (`@tool(thread=False)`), as in `Swarm`.
    """

    runs_everything = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._limiters: dict[int, anyio.CapacityLimiter] = {}  # by nesting depth
        # `anyio.to_thread.run_sync` releases the token of its limiter when the caller stops waiting, even if the thread still
        # runs. So that limiter is unlimited here, and `_ThreadSlot` releases a token of `_limiters` when the thread ends.
        self._unbounded = anyio.CapacityLimiter(math.inf)

    async def acquire(self, *, own_thread: bool = False) -> Slot:  # noqa: ARG002 - here each function has its own thread
        """Wait for a slot. `own_thread`: whether the function may run concurrently with others, or may be abandoned."""
        limiter = self._limiters.setdefault(_depth.get(), anyio.CapacityLimiter(self._size))
        slot = _ThreadSlot(limiter, self._unbounded)
        await limiter.acquire_on_behalf_of(slot)
        return slot


class _ThreadSlot:
    """A slot with one token of a limiter. `release` also releases the token. If the thread still runs, its end releases it."""

    was_withdrawn = False  # always False: a thread may start the function at any moment

    def __init__(self, limiter: anyio.CapacityLimiter, unbounded: anyio.CapacityLimiter) -> None:
        self._limiter = limiter
        self._unbounded = unbounded
        self._call_soon = scheduler()
        self._lock = threading.Lock()
        self._is_released = False
        self._is_running = False

    async def run(self, work: Callable[[], T], *, deadline: float = math.inf, abandon_on_cancel: bool = False) -> T:
        abandon = abandon_on_cancel or deadline < math.inf
        with anyio.CancelScope(shield=not abandon_on_cancel), anyio.CancelScope(deadline=deadline):
            values = await seams.run_sync(self._call, work, abandon_on_cancel=abandon, limiter=self._unbounded)
            return values[0]
        raise DeadlinePassed

    def _call(self, work: Callable[[], T]) -> list[T]:
        # Return the value in a list, because trio raises an error if the function of a thread returns a coroutine.
        with self._lock:
            if self._is_released:  # cancelled before the function started, so its result is not needed
                return []
            self._is_running = True
        try:
            return [work()]
        finally:
            with self._lock:
                self._is_running = False
                is_released = self._is_released
            if is_released:
                with suppress(RuntimeError):  # the event loop is closed, so its tokens are no longer needed
                    self._call_soon(self._release_token)

    def release(self) -> None:
        with self._lock:
            self._is_released = True
            is_running = self._is_running
        if not is_running:
            self._release_token()

    def _release_token(self) -> None:
        self._limiter.release_on_behalf_of(self)

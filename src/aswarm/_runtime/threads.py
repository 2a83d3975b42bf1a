"""Runs plain functions in a bounded number of worker threads.

Decides when a function may enter a thread and when its token is free again. `Swarm` has a subclass of `FunctionRunner`, which
calls functions in the thread of its caller.
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

# Nesting depth of tool calls. Each depth has its own tokens: otherwise a run inside a tool could wait for the token of the run
# around it, a deadlock.
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("aswarm_depth", default=0)


def enter_tool() -> None:
    """Increase the nesting depth of the current task."""
    _depth.set(_depth.get() + 1)


class DeadlinePassed(Exception):  # noqa: N818 - named after the event
    """The function did not return in time; it may still be running."""


class Slot(Protocol):
    """A slot for one function. Its owner must `release` it."""

    @property
    def was_withdrawn(self) -> bool:
        """Whether the function will never be called, although `run` was called."""
        ...

    async def run(self, work: Callable[[], T], *, deadline: float = math.inf, abandon_on_cancel: bool = False) -> T:
        """Run `work` in the slot. Raises DeadlinePassed if the deadline (in the loop's clock) passes first.

        Without `abandon_on_cancel`, a cancellation from outside waits for the function. A plain `task.cancel()` would
        interrupt that wait, so call this in a separate task.
        """
        ...

    def release(self) -> None:
        """Release the slot; the caller no longer waits for the function."""
        ...


class FunctionRunner:
    """The worker threads of one swarm on one event loop: at most `size` for each depth of nested runs.

    `runs_everything`: whether it also runs functions that never block (`@tool(thread=False)`).
    """

    runs_everything = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._tokens: dict[int, anyio.CapacityLimiter] = {}
        # anyio's own limiter is not used, because it releases a token at the end of the wait, not of the thread.
        self._unbounded = anyio.CapacityLimiter(math.inf)

    async def acquire(self, *, own_thread: bool = False) -> Slot:  # noqa: ARG002 - here each function has its own thread
        """Wait for a slot. `own_thread`: the function may run beside others, and may be abandoned."""
        tokens = self._tokens.setdefault(_depth.get(), anyio.CapacityLimiter(self._size))
        slot = _ThreadSlot(tokens, self._unbounded)
        await tokens.acquire_on_behalf_of(slot)
        return slot


class _ThreadSlot:
    """One token. It is free again after `release` and the end of the thread, if there is one."""

    was_withdrawn = False  # a thread may enter the function at any moment

    def __init__(self, tokens: anyio.CapacityLimiter, unbounded: anyio.CapacityLimiter) -> None:
        self._tokens = tokens
        self._unbounded = unbounded
        self._call_soon = scheduler()
        self._lock = threading.Lock()
        self._is_released = False
        self._is_running = False

    async def run(self, work: Callable[[], T], *, deadline: float = math.inf, abandon_on_cancel: bool = False) -> T:
        abandon = abandon_on_cancel or deadline < math.inf
        with anyio.CancelScope(shield=not abandon_on_cancel), anyio.CancelScope(deadline=deadline):
            values = await seams.run_sync(self._enter, work, abandon_on_cancel=abandon, limiter=self._unbounded)
            return values[0]
        raise DeadlinePassed

    def _enter(self, work: Callable[[], T]) -> list[T]:
        # In a list, because trio refuses a thread that returns a coroutine.
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
                with suppress(RuntimeError):  # the loop is closed, so its tokens are not needed
                    self._call_soon(self._free)

    def release(self) -> None:
        with self._lock:
            self._is_released = True
            is_running = self._is_running
        if not is_running:
            self._free()

    def _free(self) -> None:
        self._tokens.release_on_behalf_of(self)

"""Where plain functions run: in worker threads, of which a swarm has a bounded number.

Decides when a function may enter a thread and when its token is free again. Knows nothing of tools. `Swarm` has another
`FunctionRunner`, which calls them in the thread of its caller.
"""

from __future__ import annotations

import contextvars
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TypeVar

import anyio
import anyio.to_thread

from .backend import scheduler

T = TypeVar("T")

# Nesting depth of tool calls. Each depth has its own tokens: a run inside a tool would otherwise wait for a token that
# the run around it holds, and neither would end.
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("aswarm_depth", default=0)


def enter_tool() -> None:
    """Count the current task as a tool from here on."""
    _depth.set(_depth.get() + 1)


class DeadlinePassed(Exception):  # noqa: N818 - its name says what happened
    """The function did not return in time; it may still be running."""


class Slot(Protocol):
    """A place for one function. Its owner must `release` it."""

    @property
    def was_withdrawn(self) -> bool:
        """Whether the function was not called, and never will be, although `run` was."""
        ...

    async def run(self, work: Callable[[], T], *, deadline: float = math.inf, abandon_on_cancel: bool = False) -> T:
        """Run `work` there; raises DeadlinePassed if the deadline (in the loop's clock) passes first.

        Without `abandon_on_cancel`, a cancellation from outside waits for the function. A plain `task.cancel()` would
        interrupt that wait, so the caller calls this in a task of its own.
        """
        ...

    def release(self) -> None:
        """Give the slot back: the caller waits for the function no longer."""
        ...


class FunctionRunner(Protocol):
    """Runs plain functions. `runs_everything`: also those that never block (`@tool(thread=False)`)."""

    @property
    def runs_everything(self) -> bool: ...

    async def acquire(self, *, own_thread: bool = False) -> Slot:
        """Wait for a slot. `own_thread`: one where the function may run beside others, and may be left running."""
        ...


class ThreadPool:
    """The worker threads of one swarm on one event loop: `size` at once for each depth of nested runs."""

    runs_everything = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._tokens: dict[int, anyio.CapacityLimiter] = {}
        # anyio's own limit is not used, because it gives a token back when the wait ends, not when the thread does.
        self._unbounded = anyio.CapacityLimiter(math.inf)

    async def acquire(self, **_: object) -> ThreadSlot:
        """Wait for a token. Here every function has a thread of its own."""
        tokens = self._tokens.setdefault(_depth.get(), anyio.CapacityLimiter(self._size))
        slot = ThreadSlot(tokens, self._unbounded)
        await tokens.acquire_on_behalf_of(slot)
        return slot


class ThreadSlot:
    """One token. It is free again once the slot was released and the thread, if any, has really ended."""

    was_withdrawn = False  # a thread may enter the function at any moment

    def __init__(self, tokens: anyio.CapacityLimiter, unbounded: anyio.CapacityLimiter) -> None:
        self._tokens = tokens
        self._unbounded = unbounded
        self._call_soon = scheduler()
        self._lock = threading.Lock()
        self._is_released = False
        self._is_running = False

    async def run(self, work: Callable[[], T], *, deadline: float = math.inf, abandon_on_cancel: bool = False) -> T:
        """Run `work` in a thread; see `Slot`."""
        abandon = abandon_on_cancel or deadline < math.inf
        with anyio.CancelScope(shield=not abandon_on_cancel), anyio.CancelScope(deadline=deadline):
            values = await anyio.to_thread.run_sync(
                self._enter, work, abandon_on_cancel=abandon, limiter=self._unbounded
            )
            return values[0]
        raise DeadlinePassed

    def _enter(self, work: Callable[[], T]) -> list[T]:
        # In a list, because trio refuses a thread that returns a coroutine.
        with self._lock:
            if self._is_released:  # cancelled before the function began: the result is not awaited any more
                return []
            self._is_running = True
        try:
            return [work()]
        finally:
            with self._lock:
                self._is_running = False
                is_released = self._is_released
            if is_released:
                with suppress(RuntimeError):  # the loop is closed, and its tokens are not needed any more
                    self._call_soon(self._free)

    def release(self) -> None:
        """Give the token back, now or when the thread has ended."""
        with self._lock:
            self._is_released = True
            is_running = self._is_running
        if not is_running:
            self._free()

    def _free(self) -> None:
        self._tokens.release_on_behalf_of(self)

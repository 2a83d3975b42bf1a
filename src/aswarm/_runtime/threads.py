"""Where plain functions run: in worker threads, bounded per swarm, never waited for by the runs that they start.

Decides when a function may enter a thread and when its token is free again. Knows nothing of tools. A blocking face has
another `FunctionRunner` in place of the threads.
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

# How many tools are around this code: a run started inside a tool must not wait for the tokens of the run around it,
# or a pool that is full of waiting outer runs would never move. So each depth has tokens of its own.
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("aswarm_depth", default=0)


def enter_tool() -> None:
    """Say that the current task is a tool from here on."""
    _depth.set(_depth.get() + 1)


class DeadlinePassed(Exception):  # noqa: N818 - reads as what happened
    """The function did not return in time; it may still be running."""


class Slot(Protocol):
    """A place for one function. Its owner must `release` it."""

    @property
    def was_withdrawn(self) -> bool:
        """Whether the function was not called, and never will be, although `run` was."""
        ...

    async def run(self, work: Callable[[], T], *, deadline: float = math.inf, abandon_on_cancel: bool = False) -> T:
        """Run `work` there; raises DeadlinePassed when the deadline (in the loop's clock) passes first.

        Without `abandon_on_cancel`, a cancellation from outside waits for the function. The waits must not be cut by a
        plain `task.cancel()`, so the caller gives this a task of its own.
        """
        ...

    def release(self) -> None:
        """The caller waits no longer."""
        ...


class FunctionRunner(Protocol):
    """Where plain functions run. `runs_everything`: those that never block (`@tool(thread=False)`) too."""

    @property
    def runs_everything(self) -> bool: ...

    async def acquire(self, *, own_thread: bool = False) -> Slot:
        """Wait for a place. `own_thread`: one where the function may run beside others and may be left behind."""
        ...


class ThreadPool:
    """The worker threads of one swarm on one event loop: `size` at once for each depth of nested runs."""

    runs_everything = False

    def __init__(self, size: int) -> None:
        self._size = size
        self._tokens: dict[int, anyio.CapacityLimiter] = {}
        # The bound is ours, because anyio gives a token back when the waiting ends, not when the thread does.
        self._unbounded = anyio.CapacityLimiter(math.inf)

    async def acquire(self, **_: object) -> ThreadSlot:
        """Wait for a token. Every function has a thread of its own here."""
        tokens = self._tokens.setdefault(_depth.get(), anyio.CapacityLimiter(self._size))
        slot = ThreadSlot(tokens, self._unbounded)
        await tokens.acquire_on_behalf_of(slot)
        return slot


class ThreadSlot:
    """One token. It is free again when it was left and the thread, if any, has really ended."""

    was_withdrawn = False  # a thread may enter the function at any moment

    def __init__(self, tokens: anyio.CapacityLimiter, unbounded: anyio.CapacityLimiter) -> None:
        self._tokens = tokens
        self._unbounded = unbounded
        self._call_soon = scheduler()
        self._lock = threading.Lock()
        self._left = False
        self._running = False

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
            if self._left:  # cancelled before a thread was found: nobody waits for this any more
                return []
            self._running = True
        try:
            return [work()]
        finally:
            with self._lock:
                self._running = False
                left = self._left
            if left:
                with suppress(RuntimeError):  # the loop is gone, and its tokens with it
                    self._call_soon(self._free)

    def release(self) -> None:
        """The caller waits no longer."""
        with self._lock:
            self._left = True
            running = self._running
        if not running:
            self._free()

    def _free(self) -> None:
        self._tokens.release_on_behalf_of(self)

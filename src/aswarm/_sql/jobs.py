"""Pending transactions, and the event for the task that waits for the result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import anyio

from aswarm._runtime.backend import scheduler, wait_shielded

from .transactions import Transaction


class ThreadEvent:
    """An event that a thread sets. One task of any event loop may wait for it."""

    __slots__ = ("_call_soon", "_event", "wait")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._call_soon = scheduler()
        self.wait = self._event.wait

    def set(self) -> None:
        """Set the event, from any thread."""
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            self._call_soon(self._event.set)

    async def wait_shielded(self) -> None:
        """Wait until the event is set, even if the task is cancelled."""
        await wait_shielded(self._event)


@dataclass(slots=True, eq=False)
class PendingTransaction:
    """A transaction and its result: a value or an error.

    `make`: returns the transaction for each attempt.
    `done`: called with this object in the thread of the database, after the result is set.
    `waits`: whether a task waits for `event`, which is set after `done`.
    `reads_only`: whether the transaction changes nothing.
    `snapshot`: whether all its queries must read the same state.
    `durable`: whether it must survive a power failure.
    `notifies`: whether it must wake other processes.
    """

    make: Callable[[], Transaction[Any]]
    done: Callable[[PendingTransaction], object] | None = None
    waits: bool = False
    _: KW_ONLY
    reads_only: bool = False
    snapshot: bool = False
    durable: bool = False
    notifies: bool = False
    value: Any = field(default=None, init=False)
    error: Exception | None = field(default=None, init=False)
    event: ThreadEvent | anyio.Event = field(init=False)

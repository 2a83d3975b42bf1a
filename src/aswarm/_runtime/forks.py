"""What a forked child process must make for itself: a client of its own, an event loop of its own.

Decides only which process a value belongs to. Nothing is done to a value of the parent: it stays as it is.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """One value for each process, made on first use there."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        # By process id. A child keeps the value of its parent here, so that it is never collected and closed.
        self._values: dict[int, T] = {}
        # Each process has its own lock: the parent's may have been held at the moment of the fork.
        self._locks: dict[int, threading.Lock] = {}

    def get(self) -> T:
        """The value of this process."""
        process = os.getpid()
        with self._lock(process):
            if process not in self._values:
                self._values[process] = self._make()
            return self._values[process]

    def pop(self) -> T | None:
        """Forget and return the value of this process, or None if it has no value."""
        process = os.getpid()
        with self._lock(process):
            return self._values.pop(process, None)

    def _lock(self, process: int) -> threading.Lock:
        return self._locks.setdefault(process, threading.Lock())

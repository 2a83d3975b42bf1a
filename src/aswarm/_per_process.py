"""What is bound to a process: a connection or an event loop that a fork must not share with its parent."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """One value for each process, made on first use there.

    In a fork, `inherit` is called with the value of the parent, which is kept in `inherited`: nothing of it is closed.
    """

    def __init__(self, make: Callable[[], T], inherit: Callable[[T], object] = lambda _: None) -> None:
        self.inherited: list[T] = []
        self._make = make
        self._inherit = inherit
        self._process = os.getpid()
        self._value: T | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        """The value of this process."""
        with self._lock:
            value = self._own()
            if value is None:
                value = self._value = self._make()
            return value

    def pop(self) -> T | None:
        """Forget and return the value of this process, or None where there is none."""
        with self._lock:
            value, self._value = self._own(), None
            return value

    def _own(self) -> T | None:
        if self._process != os.getpid():
            inherited, self._value, self._process = self._value, None, os.getpid()
            if inherited is not None:
                self.inherited.append(inherited)
                self._inherit(inherited)
        return self._value

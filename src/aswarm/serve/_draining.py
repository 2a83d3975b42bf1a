"""`Draining`: tells readers that the process is about to end, before their clients are taken for gone."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import anyio


class Draining:
    """Tells readers that the service is about to end."""

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: set[anyio.CancelScope] = set()

    def set(self) -> None:
        """End the waits of all readers, now and later."""
        self.is_set = True
        for scope in list(self._waiting):
            scope.cancel()

    @contextmanager
    def interrupts(self) -> Generator[None]:
        """A block that ends early when draining begins."""
        with anyio.CancelScope() as scope:
            if self.is_set:
                scope.cancel()
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)

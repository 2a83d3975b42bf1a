"""The end of the process: `Draining` ends the waits of readers, and `on_shutdown_signal` calls the service before the server.

Plain uvicorn waits for all streams before it ends the lifespan. So a service that waits for its lifespan would never begin to
end, and the handler of a signal stands in front of the one that the server has set.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import anyio

from aswarm._runtime.backend import scheduler

_ENDING = (signal.SIGTERM, signal.SIGINT)


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
    def interrupts(self, after: float = math.inf) -> Generator[None]:
        """A block that ends early when draining begins, or after so many seconds."""
        with anyio.CancelScope(deadline=anyio.current_time() + after) as scope:
            if self.is_set:
                scope.cancel()
            self._waiting.add(scope)
            try:
                yield
            finally:
                self._waiting.discard(scope)


@contextmanager
def on_shutdown_signal(call: Callable[[], None]) -> Generator[None]:
    """In this block, `call` is called on the event loop when SIGTERM or SIGINT comes, and then what was set before.

    Nothing happens outside of the main thread, and for a signal without a handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    schedule = scheduler()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _ENDING}

    def handle(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            schedule(call)
        before[number](number, frame)

    ours = [number for number in _ENDING if callable(before[number])]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is handle:  # else the server has set its own since
                signal.signal(number, before[number])

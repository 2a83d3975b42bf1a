"""Shutdown: `Draining` wakes the readers that wait, `on_shutdown_signal` calls a function when the process must stop.

uvicorn waits for all streams before it ends the lifespan, but a stream ends only after the service stops. If the service waited
for the end of its lifespan, uvicorn and the service would wait forever. So the service handles the signal itself, before the
handler of the server.
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
    """A flag for readers, set when the service shuts down."""

    def __init__(self) -> None:
        self.is_set = False
        self._waiting: set[anyio.CancelScope] = set()

    def set(self) -> None:
        """Cancel all current and later `interrupts` blocks."""
        self.is_set = True
        for scope in list(self._waiting):
            scope.cancel()

    @contextmanager
    def interrupts(self, after: float = math.inf) -> Generator[None]:
        """Cancel the block when draining starts, or after this number of seconds."""
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
    """In this block, SIGTERM and SIGINT first schedule `call` on the event loop, and then run the previous handler.

    Outside of the main thread, the block does nothing. The block also ignores a signal that has no handler in Python.
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
            if signal.getsignal(number) is handle:  # otherwise the server has already set its own handler
                signal.signal(number, before[number])

"""Shutdown: `Draining` ends the waits of readers, `on_shutdown_signal` calls the service before the server.

uvicorn waits for all streams before it ends the lifespan. A service that waits for the end of its lifespan would therefore
never stop. So the signal is handled here, before the handler of the server runs.
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
        """End all current and later waits of readers."""
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
    """In this block, SIGTERM and SIGINT schedule `call` on the event loop, before they run the previous handler.

    This does nothing outside of the main thread, and for a signal without a handler.
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
            if signal.getsignal(number) is handle:  # else the server has replaced it
                signal.signal(number, before[number])

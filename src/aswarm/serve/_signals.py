"""Hears of the end of the process before the server does: a handler in front of the one that the server has set.

Plain uvicorn waits for all streams before it ends the lifespan, so a service that waits for its lifespan is never told.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from aswarm._runtime.backend import scheduler

_ENDING = (signal.SIGTERM, signal.SIGINT)


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

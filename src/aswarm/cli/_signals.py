"""Signals as an async iterator, even on Windows, where the event loop takes no signal handlers."""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import anyio

from aswarm._runtime.backend import scheduler


@contextmanager
def received(*numbers: signal.Signals) -> Generator[AsyncIterator[int]]:
    """Yield an iterator over the signals that arrive in the block, in place of their handlers. Call this in the main thread."""
    sender, receiver = anyio.create_memory_object_stream[int](math.inf)
    schedule = scheduler()

    def handle(number: int, _: FrameType | None) -> None:
        schedule(partial(sender.send_nowait, number))

    with sender, receiver:
        before = {number: signal.signal(number, handle) for number in numbers}
        try:
            yield receiver
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

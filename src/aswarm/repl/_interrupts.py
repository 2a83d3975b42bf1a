"""Ctrl-C while an event loop runs: tells the conversation, instead of ending the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

from aswarm._runtime.backend import scheduler


@contextmanager
def on_interrupt(react: Callable[[], None]) -> Generator[None]:
    """Within the block, SIGINT calls `react` on the running event loop and does nothing else.

    Only Python's main thread can say what a signal does; elsewhere, and where the process ignores SIGINT, all stays as
    it is.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
        yield
        return
    schedule = scheduler()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        schedule(react)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)

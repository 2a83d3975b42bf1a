"""The end of a universe that does not end: it fails, with its seed.

A loop counts its own steps. A step that never awaits cannot be counted, so a timer of the processor time of this process
interrupts it, where the system has one and the simulation runs in the main thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

MOST_STEPS = 250_000
"""The largest number of iterations of the loop in one universe."""
_MOST_PROCESSOR_SECONDS = 20.0


class Endless(Exception):  # noqa: N818 - named after the event
    """The universe did not end within the limits of its steps, of its virtual time, or of the processor time of one step."""


class Interrupted(BaseException):
    """Raised inside a step that does not end. `except Exception`, as around a tool, must not catch it."""


class Counted(Protocol):
    """A loop that counts its steps. `endless`: the error that ends its universe, or None."""

    steps: int
    endless: Endless | None


@contextmanager
def interrupting(loop: Counted) -> Generator[None]:
    """Interrupt a step of the loop that uses the processor for too long and does not end."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = -1

    def tick(_: int, frame: FrameType | None) -> None:
        nonlocal seen
        if loop.steps == seen:
            place = "" if frame is None else f" at {frame.f_code.co_filename}:{frame.f_lineno}"
            loop.endless = Endless(f"a step of the loop does not end{place}; a loop that waits needs an `await`")
            raise Interrupted
        seen = loop.steps

    before: Any = signal.signal(signal.SIGVTALRM, tick)
    old = signal.setitimer(signal.ITIMER_VIRTUAL, _MOST_PROCESSOR_SECONDS, _MOST_PROCESSOR_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, *old)
        signal.signal(signal.SIGVTALRM, before)

"""Handles Ctrl-C while a thread waits for a run. KeyboardInterrupt is raised between two waits, or in the user's function."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self, TypeVar

T = TypeVar("T")


class Interrupts:
    """Delays Ctrl-C inside its block. It does nothing outside the main thread, or if the program has its own handler."""

    def __init__(self) -> None:
        self._is_pending = False
        self._notify: Callable[[], None] | None = None
        self._is_holding = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._hold()
        return self

    def __exit__(self, *_: object) -> None:
        self._release()
        self.check()

    def _hold(self) -> None:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with suppress(ValueError):  # raised in the main thread of a subinterpreter
                signal.signal(signal.SIGINT, self._on_signal)
                self._is_holding = True

    def _release(self) -> None:
        if self._is_holding:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_holding = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_pending = True
        if self._notify is not None:
            self._notify()

    @contextmanager
    def notifying(self, notify: Callable[[], None]) -> Generator[None]:
        """Within the block, Ctrl-C calls `notify` in the signal handler. If Ctrl-C came earlier, `notify` is called at once."""
        self._notify = notify
        try:
            if self._is_pending:
                notify()
            yield
        finally:
            self._notify = None

    def call(self, work: Callable[[], T]) -> T:
        """Call `work`. Inside `work`, Ctrl-C raises KeyboardInterrupt. If Ctrl-C came earlier, raise it and do not call `work`."""
        was_holding = self._is_holding
        # Not a generator-based context manager: after Ctrl-C, its generator would call `_hold` only when it is collected.
        try:
            self._release()
            self.check()
            return work()
        finally:
            if was_holding:
                self._hold()

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a Ctrl-C since the last KeyboardInterrupt."""
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

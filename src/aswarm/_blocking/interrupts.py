"""Ctrl-C while a thread waits: told to whoever waits, at a moment that it can stand; raised only in users' functions."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self, TypeVar

T = TypeVar("T")


class Interrupts:
    """Holds Ctrl-C back while it is entered: in the main thread, and unless the program handles it in its own way."""

    def __init__(self) -> None:
        self._pending = False
        self._tell: Callable[[], None] | None = None
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
            with suppress(ValueError):  # the main thread of another interpreter
                signal.signal(signal.SIGINT, self._on_signal)
                self._is_holding = True

    def _release(self) -> None:
        if self._is_holding:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._is_holding = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._pending = True
        if self._tell is not None:
            self._tell()

    @contextmanager
    def told_to(self, tell: Callable[[], None]) -> Generator[None]:
        """While this is entered, `tell` is called at Ctrl-C, in the signal handler; at once if it came before."""
        self._tell = tell
        try:
            if self._pending:
                tell()
            yield
        finally:
            self._tell = None

    def call(self, work: Callable[[], T]) -> T:
        """Call `work`; meanwhile Ctrl-C raises KeyboardInterrupt as it always does, at once if it came before."""
        was_holding = self._is_holding
        # No generator as a context manager: interrupted itself, it would hold again only when it is collected.
        try:
            self._release()
            self.check()
            return work()
        finally:
            if was_holding:
                self._hold()

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C came and nobody was told."""
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

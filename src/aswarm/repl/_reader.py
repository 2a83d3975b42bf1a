"""The reader of plain lines, and the thread that reads for an event loop."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import anyio

from aswarm._runtime.backend import scheduler
from aswarm._values.text import clean

from ._display import is_terminal, write

# Windows has no termios, and does not need it, because its console echoes only while a program reads.
termios: Any = importlib.import_module("termios") if importlib.util.find_spec("termios") else None


@contextmanager
def restored_terminal() -> Generator[None]:
    """Restore the settings of the terminal after the block, because an abandoned thread in `input` leaves it without echo."""
    stdin = sys.stdin
    if termios is None or not is_terminal(stdin):
        yield
        return
    before = termios.tcgetattr(stdin)
    try:
        yield
    finally:
        termios.tcsetattr(stdin, termios.TCSANOW, before)


class LineThread:
    """Reads lines in a thread, for an event loop. If a call is cancelled, the thread still reads: the next call gets its line."""

    def __init__(self, read: Callable[[], str]) -> None:
        self._read = read
        self._pending: Future[str] | None = None

    async def line(self) -> str:
        """Return the next line. Raises the errors of `read`."""
        if self._pending is None:
            self._pending = Future()
            # The process ends without the line, but only at a terminal: a thread in a read of a pipe has a lock that Python needs.
            reading = threading.Thread(target=self._fulfil, args=[self._pending], daemon=is_terminal(sys.stdin))
            reading.start()
        has_line, schedule = anyio.Event(), scheduler()

        def wake(_: Future[str]) -> None:
            with suppress(RuntimeError):  # the event loop has ended
                schedule(has_line.set)

        self._pending.add_done_callback(wake)
        await has_line.wait()
        pending, self._pending = self._pending, None
        return pending.result()

    def _fulfil(self, pending: Future[str]) -> None:
        try:
            pending.set_result(self._read())
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            pending.set_exception(error)


class PlainReader:
    """A reader that calls `input("User: ")`. Raises EOFError at the end of the input, and KeyboardInterrupt for Ctrl-C."""

    def __init__(self) -> None:
        self.read_async = LineThread(self.read).line
        if is_terminal(sys.stdin):
            with suppress(ImportError):  # Windows has no readline
                importlib.import_module("readline")  # after this import, `input` has editing and a history

    def read(self) -> str:
        """Return the next line. If stdin is not a terminal, also print the line, so that the output is a readable transcript."""
        try:
            line = input("User: ")
        except (EOFError, KeyboardInterrupt):
            write("\n")
            raise
        if not is_terminal(sys.stdin):
            write(f"{clean(line)}\n")
        return line

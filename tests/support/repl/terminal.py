"""A program in a real pseudo terminal, with its screen and its keys."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.repl.screen import Screen

SECONDS = 30  # the time limit of a test


class Terminal:
    """The terminal of one process."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.screen = Screen()

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def until(self, shown: str | Callable[[str], object]) -> None:
        """Wait until the screen shows a text, or until a condition on its text is true."""
        is_shown = (lambda text: shown in text) if isinstance(shown, str) else shown
        end = time.monotonic() + SECONDS
        while not is_shown(self.screen.text):
            assert time.monotonic() < end, f"not shown: {shown}\n{self.screen.text}"
            if not self._read() and not is_shown(self.screen.text):
                raise AssertionError(f"ended without showing {shown}\n{self.screen.text}")

    def end(self) -> int:
        """Wait for the end of the process. Returns its exit code."""
        while self._read():
            pass
        return self.process.wait(SECONDS)

    def _read(self) -> bool:
        if not select.select([self._descriptor], [], [], 0.1)[0]:
            return True
        try:
            written = os.read(self._descriptor, 65536)
        except OSError:  # on Linux, because every process has closed the other end
            return False
        self.screen.feed(written.decode(errors="replace"))
        return bool(written)


@contextmanager
def terminal(program: str, *arguments: str, **environment: str) -> Iterator[Terminal]:
    """Run a Python program at a terminal of 80 by 24."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    settings: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    # Ctrl-C sends its signal to the session that controls the terminal.
    begin = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n{program}"
    added = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "ASWARM_HISTORY": "", **environment}
    with subprocess.Popen(
        [sys.executable, "-c", begin, *arguments], env={**os.environ, **added}, **settings
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(ours, process)
        finally:
            process.kill()
            os.close(ours)

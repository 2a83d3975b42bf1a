"""Keys that are pressed while an answer is being shown: they are kept for the next prompt and not echoed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from ._text import is_terminal

# Not on Windows, where the console echoes only while somebody reads.
termios: Any = importlib.import_module("termios") if importlib.util.find_spec("termios") else None


class Keys:
    """The echo of the terminal on stdin, which would tear apart what is shown in place."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def hush(self) -> None:
        """No echo from here on. Ctrl-C still interrupts."""
        if termios is None or not is_terminal(sys.stdin):
            return
        self._before = termios.tcgetattr(sys.stdin)
        quiet = list(termios.tcgetattr(sys.stdin))
        quiet[3] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)

    def restore(self) -> None:
        """As it was."""
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, self._before)
        self._before = None

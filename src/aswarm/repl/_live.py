"""The part of the screen that still changes: a spinner, a model's reasoning, or the unfinished end of an answer.

It disappears without a trace. While it is shown, the terminal does not echo keys.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from ._markdown import MarkdownTail
from ._text import is_terminal

_REASONING = 400  # characters of a model's reasoning that are shown
_REST = 4.0  # the least time until the next refresh, as a multiple of the time that the last one took

# Windows has none, and does not need it: its console echoes only while a program reads.
termios: Any = importlib.import_module("termios") if importlib.util.find_spec("termios") else None


class LiveArea:
    """Shows one thing at a time, below everything that was printed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._echo = Echo()
        self._live: Live | None = None
        self._reasoning = ""
        self._has_spinner = False
        self._next_refresh = 0.0  # in seconds of `time.monotonic`

    def show_spinner(self, name: str) -> None:
        """Show that an agent is waited for."""
        self.clear()
        self._reasoning = ""
        self._has_spinner = True
        # A thread of rich redraws it. Printing at the same time would mix the outputs, so it is removed before that.
        self._begin(Live(Spinner("dots", Text(name, style="dim")), console=self._console, transient=True))

    def remove_spinner(self) -> None:
        """Remove the spinner, if there is one."""
        if self._has_spinner:
            self.clear()

    def show_reasoning(self, piece: str) -> None:
        """Show the end of a model's reasoning, with a new piece of it."""
        self._reasoning = (self._reasoning + piece)[-_REASONING:]
        self._show(Text(self._reasoning.strip(), style="dim italic"), immediately=False)

    def show_markdown(self, text: str, *, blank_line: bool, immediately: bool) -> None:
        """Show the end of an unfinished text.

        `blank_line`: put one before it. `immediately`: refresh now, also if the last refresh was a moment ago.
        """
        tail = MarkdownTail(text)
        self._show(Group("", tail) if blank_line else tail, immediately=immediately)

    def clear(self) -> None:
        """Remove what is shown."""
        live, self._live = self._live, None
        self._has_spinner = False
        try:
            if live is not None:
                live.stop()
        finally:
            self._echo.restore()

    def _begin(self, live: Live) -> None:
        self._echo.off()
        self._live = live
        live.start()

    def _show(self, shown: RenderableType, *, immediately: bool) -> None:
        self.remove_spinner()
        live = self._live
        if live is None:
            live = Live(console=self._console, auto_refresh=False, transient=True)
            self._begin(live)
        begun = time.monotonic()
        is_due = immediately or begun >= self._next_refresh
        live.update(shown, refresh=is_due)
        if is_due:
            ended = time.monotonic()
            self._next_refresh = ended + _REST * (ended - begun)


class Echo:
    """Whether the terminal on stdin shows the keys that are pressed. Without echo they are kept for the next prompt."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def off(self) -> None:
        """Stop the echo, which would break what is shown in place. Ctrl-C still interrupts."""
        if termios is None or not is_terminal(sys.stdin):
            return
        self._before = termios.tcgetattr(sys.stdin)
        silent = list(termios.tcgetattr(sys.stdin))
        silent[3] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)

    def restore(self) -> None:
        """Set the terminal as it was before `off`."""
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, self._before)
        self._before = None

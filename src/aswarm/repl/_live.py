"""The part of the screen that still changes: somebody is thinking, or an answer grows. It leaves nothing behind."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from ._keys import Keys
from ._markdown import Tail

_THOUGHT = 400  # characters of a model's reasoning that are seen at once
_REST = 4.0  # how much longer than the last showing took, until the next


class Stage:
    """At most one thing is on it, under everything that was printed."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._keys = Keys()
        self._live: Live | None = None
        self._thoughts = ""
        self._waits = False
        self._next = 0.0  # when it may be shown again, in seconds of `time.monotonic`

    def wait(self, name: str) -> None:
        """A spinner, until something comes."""
        self.clear()
        self._thoughts = ""
        self._waits = True
        # A thread of rich's turns it. Nobody else may print meanwhile, so it is taken away before anything else is.
        self._begin(Live(Spinner("dots", Text(name, style="dim")), console=self._console, transient=True))

    def end_waiting(self) -> None:
        """Take away the spinner, if there is one."""
        if self._waits:
            self.clear()

    def think(self, piece: str) -> None:
        """The end of what a model says to itself; it is not kept."""
        self._thoughts = (self._thoughts + piece)[-_THOUGHT:]
        self._show(Text(self._thoughts.strip(), style="dim italic"), now=False)

    def grow(self, text: str, *, apart: bool, now: bool) -> None:
        """The end of a text that is still being written. `apart`: after a blank line. `now`: it must be seen at once."""
        self._show(Group("", Tail(text)) if apart else Tail(text), now=now)

    def clear(self) -> None:
        """Take away what is there."""
        live, self._live = self._live, None
        self._waits = False
        try:
            if live is not None:
                live.stop()
        finally:
            self._keys.restore()

    def _begin(self, live: Live) -> None:
        self._keys.hush()
        self._live = live
        live.start()

    def _show(self, shown: RenderableType, *, now: bool) -> None:
        self.end_waiting()
        live = self._live
        if live is None:
            live = Live(console=self._console, auto_refresh=False, transient=True)
            self._begin(live)
        begun = time.monotonic()
        is_due = now or begun >= self._next
        live.update(shown, refresh=is_due)
        if is_due:
            ended = time.monotonic()
            self._next = ended + _REST * (ended - begun)

"""The two sides of a terminal that a chat needs: a display that shows, and a reader that asks the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aswarm._events import Event
from aswarm._usage import Usage


class Display(Protocol):
    """Shows a conversation. A display gets texts as models, tools and users wrote them, and makes them safe to show."""

    def greet(self, hint: str) -> None:
        """Show that the chat begins. `hint`: what the user may want to know, or an empty text."""
        ...

    def show_event(self, event: Event) -> None:
        """Show an event of a run."""
        ...

    def show_calls(self, agent: str, message: Mapping[str, Any]) -> None:
        """Show the calls of an assistant message, which are about to run."""
        ...

    def end_run(self) -> None:
        """End what is still being shown; the run has ended, in any way."""
        ...

    def show_usage(self, used: Usage) -> None:
        """Show the tokens that a run has used."""
        ...

    def show_text(self, text: str) -> None:
        """Show a text of the chat itself, of any number of lines."""
        ...

    def show_error(self, text: str) -> None:
        """Show on one line what is wrong."""
        ...

    def show_history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Show the messages of a conversation."""
        ...


class Reader(Protocol):
    """Asks the user. Raises EOFError at the end of input, KeyboardInterrupt for Ctrl-C."""

    def read(self) -> str:
        """The next line."""
        ...

    async def read_async(self) -> str:
        """The next line; other tasks run meanwhile."""
        ...

"""What the conversation needs of a terminal: a face that shows, and a reader that asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from aswarm._events import Event
from aswarm._usage import Usage


class Face(Protocol):
    """Shows what happens. Texts come as models, tools and users made them; a face makes them fit to be shown."""

    def greet(self, hint: str) -> None:
        """The loop begins. `hint`: what the user may want to know, or nothing."""
        ...

    def show(self, event: Event) -> None:
        """Something has happened in a run."""
        ...

    def calls(self, agent: str, message: Mapping[str, Any]) -> None:
        """The calls of an assistant message are about to run."""
        ...

    def settle(self) -> None:
        """A run is over, in whatever way: end what has not ended."""
        ...

    def usage(self, used: Usage) -> None:
        """A run has used so many tokens."""
        ...

    def say(self, text: str) -> None:
        """Show a text of the loop's own, of any number of lines."""
        ...

    def complain(self, text: str) -> None:
        """Show on one line what is wrong."""
        ...

    def history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Show a conversation."""
        ...


class Reader(Protocol):
    """Asks the user. Raises EOFError at the end of input, KeyboardInterrupt for Ctrl-C."""

    def read(self) -> str:
        """The next line."""
        ...

    async def read_async(self) -> str:
        """The same, while the event loop goes on."""
        ...

"""Writes a run as it happens: the answer to one stream, what is done on the way to another, or nowhere."""

from __future__ import annotations

from typing import TextIO

from aswarm._agent import Response
from aswarm._events import (
    CompletionFinished,
    Event,
    HandedOff,
    RefusalDelta,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnStarted,
)

from ._output import clipped, write


class Narrator:
    """`answer` gets the text of the model, piece by piece; `aside`, if any, who speaks, what is called, who takes over."""

    def __init__(self, answer: TextIO, aside: TextIO | None = None) -> None:
        self._answer = answer
        self._aside = aside
        self._speaker = ""
        self._last = "\n"

    def show(self, event: Event) -> None:
        """Write one event."""
        match event:
            case TurnStarted(agent=agent):
                self._speaker = agent.name
            case TextDelta(text=text) | RefusalDelta(text=text):
                self._say(text)
            case CompletionFinished():
                self.end_line()
                self._speaker = ""
            case ToolCallStarted(name=name, arguments=arguments, agent=agent):
                self._tell(f"{agent.name} calls {name}({arguments})")
            case ToolCallFinished(name=name, content=content):
                self._tell(f"{name}: {content}")
            case HandedOff(source=source, target=target):
                self._tell(f"{source.name} hands over to {target.name}")
            case _:
                pass

    def whole(self, response: Response) -> None:
        """Write the last answer of a run that was not streamed."""
        self._say(response.text)
        self.end_line()

    def stop(self, *_: object) -> None:
        """End the line; what went wrong is said by the exit."""
        self.end_line()

    def end_line(self) -> None:
        """End the line of the answer, where one is open."""
        if self._last != "\n":
            write(self._answer, "\n")
            self._last = "\n"

    def _say(self, text: str) -> None:
        if self._speaker and self._aside is not None:
            # On a line of its own, where the answer goes somewhere else.
            write(self._aside, clipped(self._speaker) + (": " if self._aside is self._answer else ":\n"))
        self._speaker = ""
        write(self._answer, text)
        self._last = text[-1:] or self._last

    def _tell(self, text: str) -> None:
        if self._aside is not None:
            write(self._aside, f"  {clipped(text)}\n")

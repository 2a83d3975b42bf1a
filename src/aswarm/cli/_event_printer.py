"""Prints a run as text while it happens: the answer to one stream; agents, calls and handoffs to another stream, or nowhere."""

from __future__ import annotations

import json
from typing import TextIO

from aswarm._agent import Response
from aswarm._events import (
    CallWaiting,
    CompletionFinished,
    Event,
    HandedOff,
    RefusalDelta,
    RunFinished,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnStarted,
)
from aswarm._json import jsonable
from aswarm._text import one_line

from ._output import output_of, write


class EventPrinter:
    """`answer` gets the model's text, piece by piece. `details`, if given, gets agent names, calls and handoffs.

    `has_type`: the answer has a type. It is written once, at the end, as JSON.
    """

    def __init__(self, answer: TextIO, details: TextIO | None = None, *, has_type: bool = False) -> None:
        self._answer = answer
        self._details = details
        self._has_type = has_type
        self._agent_name = ""  # until it has been printed
        self._last = "\n"

    def show(self, event: Event) -> None:
        """Write one event."""
        match event:
            case TurnStarted(agent=agent):
                self._end_line()
                self._agent_name = agent.name
            case TextDelta(text=text) | RefusalDelta(text=text):
                self._write_piece(text)
            case CompletionFinished():
                self._end_line()
                self._agent_name = ""
            case ToolCallStarted(name=name, arguments=arguments, agent=agent):
                self._write_detail(f"{agent.name} calls {name}({arguments})")
            case ToolCallFinished(name=name, content=content):
                self._write_detail(f"{name}: {content}")
            case CallWaiting(name=name, reason=reason):
                self._write_detail(f"{name} waits: {reason}")
            case HandedOff(source=source, target=target):
                self._write_detail(f"{source.name} hands over to {target.name}")
            case RunFinished(response=response):
                self._finish(response)
            case _:
                pass

    def _write_piece(self, text: str) -> None:
        if not self._has_type:
            self._write_answer(text)

    def _finish(self, response: Response) -> None:
        if self._has_type:
            self.show_response(response)
        else:
            self._end_line()
            self._write_open_calls(response)

    def show_response(self, response: Response) -> None:
        """Write the last answer of a run that was not streamed."""
        output = output_of(response) if self._has_type else None
        self._write_answer(response.text if output is None else json.dumps(output, ensure_ascii=False))
        self._end_line()
        self._write_open_calls(response)

    def show_failure(self, *_: object) -> None:
        """End the line. The error itself is printed where the command ends."""
        self._end_line()

    def _write_open_calls(self, response: Response) -> None:
        """Write the calls that wait for a decision, if the run has stopped for them, as one line of JSON."""
        if response.stop == "waiting":
            write(self._answer, json.dumps(jsonable(response.waiting)) + "\n")

    def _end_line(self) -> None:
        if self._last != "\n":
            write(self._answer, "\n")
            self._last = "\n"

    def _write_answer(self, text: str) -> None:
        if self._agent_name and self._details is not None:
            # The name has a line of its own where the answer goes to another stream.
            write(self._details, one_line(self._agent_name) + (": " if self._details is self._answer else ":\n"))
        self._agent_name = ""
        write(self._answer, text)
        self._last = text[-1:] or self._last

    def _write_detail(self, text: str) -> None:
        if self._details is not None:
            write(self._details, f"  {one_line(text)}\n")

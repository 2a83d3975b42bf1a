"""Printers of the events of a run: `EventPrinter` prints text, `JsonLines` prints one JSON object on each line."""

from __future__ import annotations

import json
from typing import Any, TextIO

from aswarm._values.agent import Response
from aswarm._values.errors import AswarmError, named
from aswarm._values.events import (
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
from aswarm._values.json import jsonable
from aswarm._values.text import one_line

from ._output import output_of, write


class EventPrinter:
    """A printer of events as text.

    `answer`: the stream for the model's text. `details`: the stream for agent names, calls and handoffs, or None. `has_type`:
    whether the answer has a type; such an answer is written as JSON, at the end.
    """

    def __init__(self, answer: TextIO, details: TextIO | None = None, *, has_type: bool = False) -> None:
        self._answer = answer
        self._details = details
        self._has_type = has_type
        self._agent_name = ""  # the name that is to be printed before the answer; empty after it was printed
        self._last = "\n"

    def show(self, event: Event) -> None:
        match event:
            case TurnStarted(agent=agent):
                self._end_line()
                self._agent_name = agent.name
            case TextDelta(text=text) | RefusalDelta(text=text) if not self._has_type:
                self._write_answer(text)
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
            case RunFinished(response=response) if self._has_type:
                self.show_response(response)
            case RunFinished(response=response):
                self._end_line()
                self._write_open_calls(response)
            case _:
                pass

    def show_response(self, response: Response) -> None:
        """Write the answer of a run that was not streamed."""
        output = output_of(response) if self._has_type else None
        self._write_answer(response.text if output is None else json.dumps(output, ensure_ascii=False))
        self._end_line()
        self._write_open_calls(response)

    def show_failure(self, *_: object) -> None:
        """End the line. Later, the command prints the error."""
        self._end_line()

    def _write_open_calls(self, response: Response) -> None:
        if response.stop == "waiting":
            write(self._answer, json.dumps(jsonable(response.open_calls)) + "\n")

    def _end_line(self) -> None:
        if self._last != "\n":
            write(self._answer, "\n")
            self._last = "\n"

    def _write_answer(self, text: str) -> None:
        if self._agent_name and self._details is not None:
            # If the answer goes to another stream than the name, the name gets its own line.
            write(self._details, one_line(self._agent_name) + (": " if self._details is self._answer else ":\n"))
        self._agent_name = ""
        write(self._answer, text)
        self._last = text[-1:] or self._last

    def _write_detail(self, text: str) -> None:
        if self._details is not None:
            write(self._details, f"  {one_line(text)}\n")


class JsonLines:
    """A printer of typed events: each event is one line, its `to_dict()` as JSON."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout

    def show(self, event: Event) -> None:
        self._write(event.to_dict())

    def show_response(self, response: Response) -> None:
        """Write the last event of a run that was not streamed."""
        self.show(RunFinished(response))

    def show_failure(self, response: Response, error: BaseException) -> None:
        """Write the last line of a run that failed or was stopped, with its partial response."""
        more = {name: getattr(error, name) for name in ("status_code", "retryable") if hasattr(error, name)}
        kind = "RunFailed" if isinstance(error, AswarmError) else "RunStopped"
        # This line replaces `RunFinished`, so it has the same form.
        partial = RunFinished(response).to_dict()["response"]
        self._write({"type": kind, "error": named(error), **more, "response": partial})

    def _write(self, fields: dict[str, Any]) -> None:
        # ASCII works with each encoding of the output, and can escape half a surrogate pair.
        write(self._stdout, json.dumps(fields) + "\n")

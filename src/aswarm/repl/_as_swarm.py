"""What OpenAI's Swarm prints for messages and for its events, byte for byte, with its colours, also in a pipe.

Three things differ: control characters in a text are shown as symbols, NO_COLOR switches the colours off, and messages
for which Swarm fails are printed (without a sender, with content in parts, a refusal, arguments that are not JSON).
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping
from typing import Any, NamedTuple, overload

from aswarm._agent import Response
from aswarm._messages import call_name, text_of
from aswarm._text import clean, one_line, without_colours

from ._printing import BLUE, END, PURPLE, write
from ._text import arguments_of


class _Colours(NamedTuple):
    name: str = BLUE
    call: str = PURPLE
    end: str = END


def _colours() -> _Colours:
    return _Colours("", "", "") if without_colours() else _Colours()


def pretty_print_messages(messages: Iterable[Mapping[str, Any]]) -> None:
    """Print the assistant messages: the name in blue, the text, and a line for each call, its function in purple."""
    colours = _colours()
    for message in messages:
        if message["role"] == "assistant":
            _print_as_swarm(message, colours)


def _print_as_swarm(message: Mapping[str, Any], colours: _Colours) -> None:
    name = str(message.get("sender") or "Assistant")
    text = text_of(message.get("content")) or str(message.get("refusal") or "")
    write(f"{colours.name}{clean(name)}{colours.end}: " + (f"{clean(text)}\n" if text else ""))
    calls: list[Mapping[str, Any]] = message.get("tool_calls") or []
    if len(calls) > 1:
        write("\n")
    for call in calls:
        write(f"{colours.call}{one_line(call_name(call))}{colours.end}({_arguments_as_swarm(arguments_of(call))})\n")


def _arguments_as_swarm(arguments: str) -> str:
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return one_line(arguments)
    return clean(json.dumps(parsed).replace(":", "=")[1:-1])  # each colon, as in Swarm


class _ChunkPrinter:
    """Prints Swarm's events. `response` is that of the last event, once it has come."""

    def __init__(self) -> None:
        self.response: Response | None = None
        self._colours = _colours()
        self._sender = ""
        self._has_text = False

    def show(self, chunk: Mapping[str, Any]) -> None:
        self._sender = clean(str(chunk.get("sender") or self._sender))
        if chunk.get("content") is not None:
            self._show_text(text_of(chunk["content"]))
        for call in chunk.get("tool_calls") or ():
            if name := call_name(call):
                write(
                    f"{self._colours.name}{self._sender}: {self._colours.call}{one_line(name)}{self._colours.end}()\n"
                )
        if chunk.get("delim") == "end" and self._has_text:
            write("\n")
            self._has_text = False
        self.response = chunk.get("response", self.response)

    def _show_text(self, text: str) -> None:
        if self._sender and not self._has_text:
            write(f"{self._colours.name}{self._sender}:{self._colours.end} ")
            self._sender = ""  # as in Swarm, whose calls after a text have no name
        write(clean(text))
        self._has_text = self._has_text or bool(text)

    def result(self, stream: object) -> Response:
        response: Response | None = self.response or getattr(stream, "response", None)
        if response is None:
            raise ValueError('the stream ended without a {"response": ...} event; pass the stream of a whole run')
        return response


@overload
def process_and_print_streaming_response(response: Iterable[Mapping[str, Any]]) -> Response: ...


@overload
def process_and_print_streaming_response(response: AsyncIterable[Mapping[str, Any]]) -> Awaitable[Response]: ...


def process_and_print_streaming_response(
    response: Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]],
) -> Response | Awaitable[Response]:
    """Print the events of `run(..., stream=True)` as they come. Returns the `Response`.

    With a stream of `AsyncSwarm`, await it: `await process_and_print_streaming_response(swarm.run(..., stream=True))`.
    Raises ValueError if the stream ends without a response.
    """
    if not isinstance(response, Iterable):
        return _print_async(response)
    printer = _ChunkPrinter()
    for chunk in response:
        printer.show(chunk)
    return printer.result(response)


async def _print_async(stream: AsyncIterable[Mapping[str, Any]]) -> Response:
    printer = _ChunkPrinter()
    async for chunk in stream:
        printer.show(chunk)
    return printer.result(stream)

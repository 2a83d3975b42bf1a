"""Prints on stdout what OpenAI's Swarm prints, in its colours: names in blue, calls in purple.

Decides how messages and Swarm's events look as plain lines. There are colours only at a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping
from typing import Any, overload

from aswarm._agent import Response
from aswarm._messages import call_name, text_of

from ._text import clean, formatted_calls, one_line

_BLUE, _PURPLE = "\033[94m", "\033[95m"
_END = "\033[0m"


def write(text: str) -> None:
    """Write to stdout and flush. A character that the encoding of stdout does not have becomes a question mark."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def painted(text: str, colour: str) -> str:
    """The text without control characters, in a colour where stdout is a terminal."""
    has_colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    return f"{colour}{clean(text)}{_END}" if has_colours else clean(text)


class LineWriter:
    """Writes a line `Name: text` piece by piece."""

    def __init__(self) -> None:
        self._is_open = False

    def add(self, name: str, text: str) -> None:
        """Write a piece of the text, and before the first piece the name."""
        if not self._is_open:
            write(f"{painted(f'{name}:', _BLUE)} " if name else "")
        self._is_open = True
        write(clean(text))

    def end(self) -> None:
        """End the line, if one has begun."""
        if self._is_open:
            write("\n")
        self._is_open = False


def print_calls(name: str, message: Mapping[str, Any]) -> None:
    """Print one line for each call of an assistant message."""
    for function, arguments in formatted_calls(message, as_swarm=True):
        write(f"{painted(name, _BLUE)}: {painted(function, _PURPLE)}({arguments})\n")


def pretty_print_messages(messages: Iterable[Mapping[str, Any]]) -> None:
    """Print the texts and calls of the assistant messages: `Name: text`, `Name: function("key"= value)`."""
    for message in messages:
        if message["role"] == "assistant":
            _print_message(str(message.get("sender") or "Assistant"), message)


def _print_message(name: str, message: Mapping[str, Any]) -> None:
    text = text_of(message.get("content")) or str(message.get("refusal") or "")
    if text or not message.get("tool_calls"):
        write(f"{painted(name, _BLUE)}: {clean(text)}\n")
    print_calls(name, message)


class _ChunkPrinter:
    """Prints Swarm's events. `response` is that of the last event, once it has come."""

    def __init__(self) -> None:
        self.response: Response | None = None
        self._sender = ""
        self._line = LineWriter()

    def show(self, chunk: Mapping[str, Any]) -> None:
        self._sender = str(chunk.get("sender") or self._sender)
        if text := text_of(chunk.get("content")):
            self._line.add(self._sender, text)
        for call in chunk.get("tool_calls") or ():
            if name := call_name(call):
                self._line.end()
                write(f"{painted(f'{self._sender}:', _BLUE)} {painted(one_line(name), _PURPLE)}()\n")
        if chunk.get("delim") == "end":
            self._line.end()
        self.response = chunk.get("response", self.response)

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

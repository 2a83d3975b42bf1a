"""Prints messages and Swarm's events like OpenAI's Swarm: byte for byte, with the same colours, even in a pipe.

There are three differences. Control characters in a text are shown as symbols. NO_COLOR switches the colours off. Messages for
which Swarm raises an error are printed: messages without a sender, with content in parts, with a refusal, or with arguments
that are not JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, Awaitable, Iterable, Mapping
from typing import Any, overload

from aswarm._values.agent import Response
from aswarm._values.messages import call_input, call_name, text_of
from aswarm._values.text import clean, one_line, without_colours

from ._display import BLUE, END, PURPLE, answer_of, write

_COLOURS = re.compile(r"\033\[\d+m")


def pretty_print_messages(messages: Iterable[Mapping[str, Any]]) -> None:
    """Print the assistant messages: the name of the agent in blue, the text, and a line for each call, in purple."""
    for message in messages:
        if message["role"] != "assistant":
            continue
        name, text = answer_of(message)
        _write(f"{BLUE}{clean(name)}{END}: " + (f"{clean(text)}\n" if text else ""))
        calls: list[Mapping[str, Any]] = message.get("tool_calls") or []
        if len(calls) > 1:
            write("\n")
        for call in calls:
            _write(f"{PURPLE}{one_line(call_name(call))}{END}({_arguments_as_swarm(call_input(call))})\n")


def _write(text: str) -> None:
    write(_COLOURS.sub("", text) if without_colours() else text)


def _arguments_as_swarm(arguments: str) -> str:
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return one_line(arguments)
    return clean(json.dumps(parsed).replace(":", "=")[1:-1])  # Swarm also replaces each colon


class _ChunkPrinter:
    """A printer of Swarm's events. `response`: the response in the last event; None before the last event."""

    def __init__(self) -> None:
        self.response: Response | None = None
        self._sender = ""
        self._has_text = False

    def show(self, chunk: Mapping[str, Any]) -> None:
        self._sender = clean(str(chunk.get("sender") or self._sender))
        if chunk.get("content") is not None:
            self._show_text(text_of(chunk["content"]))
        for call in chunk.get("tool_calls") or ():
            if name := call_name(call):
                _write(f"{BLUE}{self._sender}: {PURPLE}{one_line(name)}{END}()\n")
        if chunk.get("delim") == "end" and self._has_text:
            write("\n")
            self._has_text = False
        self.response = chunk.get("response", self.response)

    def _show_text(self, text: str) -> None:
        if self._sender and not self._has_text:
            _write(f"{BLUE}{self._sender}:{END} ")
            self._sender = ""  # like Swarm, print no name before calls that follow a text
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
    """Print the events of `run(..., stream=True)` when they arrive. Returns the `Response`.

    For a stream of `AsyncSwarm`, await this: `await process_and_print_streaming_response(swarm.run(..., stream=True))`.
    Raises ValueError if the stream ends without a response.
    """
    if isinstance(response, AsyncIterable):  # first, because an async stream has __iter__ too, which names the remedy
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

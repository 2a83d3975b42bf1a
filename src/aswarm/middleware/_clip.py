"""Shortening of long tool results, as middleware."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aswarm._values.errors import ConfigurationError
from aswarm.extensions import Handlers, Middleware, Started, ToolCall, ToolOutcome

_LEAST = 100  # a shorter text has no space for the note


def clip_results(characters: int) -> Middleware:
    """Return middleware that shortens the results of tools to this number of characters, at least 100.

    The model and the history get the start and the end of a longer text, with a note between them. In a result with images
    or files, each text is shortened separately. A call inside code (`call.parent`) keeps its result, because the code reads it and
    not the model; the result of the code is shortened. The definitions of found tools are not shortened. Raises ConfigurationError for a smaller number.
    """
    if type(characters) is not int or characters < _LEAST:
        raise ConfigurationError(f"characters must be a whole number from {_LEAST}, not {characters!r}")

    def wrap(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            outcome = await handlers.call_tool(call, context, started)
            if call.parent is not None or (call.tool is not None and call.tool.is_search):
                return outcome
            if isinstance(outcome.content, str):
                return replace(outcome, content=_clipped(outcome.content, characters))
            parts = [
                {**part, "text": _clipped(part["text"], characters)} if isinstance(part.get("text"), str) else part
                for part in outcome.content
            ]
            return replace(outcome, content=parts)

        return replace(handlers, call_tool=call_tool)

    return wrap


def _clipped(text: str, characters: int) -> str:
    if len(text) <= characters:
        return text
    # Reserve space for the longest possible note: the first number never has more digits than the second.
    note = "\n[... {:,} of {:,} characters left out ...]\n"
    kept = characters - len(note.format(len(text), len(text)))
    note = note.format(len(text) - kept, len(text))
    tail = kept // 3  # most of the space is for the start of the text; but errors and totals are often at the end
    return text[: kept - tail] + note + text[len(text) - tail :]

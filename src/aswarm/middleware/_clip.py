"""Shortening of long tool results, as middleware."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aswarm._values.content import Part
from aswarm._values.errors import ConfigurationError
from aswarm.extensions import Handlers, Middleware, Started, ToolCall, ToolOutcome

_LEAST = 100  # a shorter text has no space for the note


def clip_results(characters: int) -> Middleware:
    """Return middleware that shortens the results of tools to this number of characters, at least 100.

    The model and the history get the start and the end of a longer text, with a note between them. In a result with images
    or files, each text is shortened separately. A call inside code (`call.parent`) keeps its result, because the code reads it and
    not the model; the result of the code is shortened. Raises ConfigurationError for a smaller number.
    """
    if type(characters) is not int or characters < _LEAST:
        raise ConfigurationError(f"characters must be a whole number from {_LEAST}, not {characters!r}")

    def wrap(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            outcome = await handlers.call_tool(call, context, started)
            content = outcome.content
            if call.parent is not None:
                return outcome
            if isinstance(content, str):
                return (
                    outcome if len(content) <= characters else replace(outcome, content=_clipped(content, characters))
                )
            return replace(outcome, content=[_clipped_part(part, characters) for part in content])

        return replace(handlers, call_tool=call_tool)

    return wrap


def _clipped_part(part: Part, characters: int) -> Part:
    text = part.get("text")
    return {**part, "text": _clipped(text, characters)} if isinstance(text, str) and len(text) > characters else part


def _clipped(text: str, characters: int) -> str:
    # Reserve space for the longest possible note: the first number never has more digits than the second.
    note = "\n[... {:,} of {:,} characters left out ...]\n"
    kept = characters - len(note.format(len(text), len(text)))
    note = note.format(len(text) - kept, len(text))
    tail = kept // 3  # most of the space is for the start of the text; but errors and totals are often at the end
    return text[: kept - tail] + note + text[len(text) - tail :]

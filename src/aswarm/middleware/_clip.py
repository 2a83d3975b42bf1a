"""Long results of tools, shortened for the model, as middleware."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aswarm._content import Part
from aswarm._errors import ConfigurationError
from aswarm._run.handlers import Handlers, Middleware, Started
from aswarm._run.plan import ToolCall, ToolOutcome

_LEAST = 100  # less than this could not hold the note


def clip_results(characters: int) -> Middleware:
    """Middleware that shortens the results of tools to this many characters, at least 100.

    The model gets the head and the tail of a longer text, and between them how much was left out. The history has the
    same. In a result with images or files, each text is shortened by itself. Raises ConfigurationError for a smaller number.
    """
    if type(characters) is not int or characters < _LEAST:
        raise ConfigurationError(f"characters must be a whole number from {_LEAST}, not {characters!r}")

    def wrap(handlers: Handlers) -> Handlers:
        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            outcome = await handlers.call_tool(call, context, started)
            content = outcome.content
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
    # One note for any length: the numbers in it have the same width, whatever is left out.
    note = "\n[... {:,} of {:,} characters left out ...]\n"
    kept = characters - len(note.format(len(text), len(text)))
    note = note.format(len(text) - kept, len(text))
    tail = kept // 3  # results begin with what they are; errors and totals stand at the end
    return text[: kept - tail] + note + text[len(text) - tail :]

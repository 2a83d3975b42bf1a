"""Whole completions: the chunks of one completion as one chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aswarm._values.json import is_array, is_object
from aswarm.extensions import Accumulator


def as_one_chunk(chunks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a completion as one chunk. Every accumulator makes the same message from this chunk.

    A single whole chunk is returned unchecked, with all its keys. Raises CompletionError if the chunks are not a completion.
    """
    if len(chunks) == 1 and _is_complete(chunks[0]):
        return chunks[0]
    accumulator = Accumulator()
    for chunk in chunks:
        accumulator.feed(chunk)
    return accumulator.finish().as_chunk()


def _is_complete(chunk: Mapping[str, Any]) -> bool:
    """Return whether the chunk is a whole completion with all call ids. Each reader would make another id for a missing id."""
    message = whole_message(chunk)
    calls: Any = () if message is None else message.get("tool_calls") or ()
    return message is not None and is_array(calls) and all(is_object(call) and bool(call.get("id")) for call in calls)


def whole_message(chunk: object) -> Mapping[str, Any] | None:
    """Return the message of a chunk that is a whole completion with one choice; None for any other chunk."""
    if not is_object(chunk) or chunk.get("error"):
        return None
    choices = chunk.get("choices")
    choice = choices[0] if is_array(choices) and len(choices) == 1 else None
    if not is_object(choice) or choice.get("error") or choice.get("index") not in (None, 0) or choice.get("delta"):
        return None
    message = choice.get("message")
    return message if message and is_object(message) else None

"""Whole completions: chunks that have a message in place of a delta.

Decides whether a chunk is one, and makes one of the chunks of a stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aswarm._json import is_array, is_object
from aswarm._messages import Message

from .accumulator import Accumulator

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


def whole_message(chunk: object) -> Mapping[str, Any] | None:
    """The message of a chunk that is one whole completion in the usual form; None for any other chunk."""
    if not is_object(chunk) or chunk.get("error"):
        return None
    choices = chunk.get("choices")
    choice = choices[0] if is_array(choices) and len(choices) == 1 else None
    if not is_object(choice) or choice.get("error") or choice.get("index") not in (None, 0):
        return None
    message = choice.get("message")
    return message if message and is_object(message) else None


def as_one_chunk(chunks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """A completion as one chunk that gives the same message each time it is read.

    Raises CompletionError if the chunks are not a completion. A single whole chunk is returned as it is, and its reader
    checks it.
    """
    if len(chunks) == 1 and _is_complete(chunks[0]):
        return chunks[0]
    accumulator = Accumulator()
    for chunk in chunks:
        accumulator.feed(chunk)
    completion = accumulator.finish()
    calls: list[Message] = completion.message["tool_calls"] or []
    # The numbers keep the calls apart, however odd their ids and names are.
    numbered: list[Message] = [{"index": position, **call} for position, call in enumerate(calls)]
    message: Message = {**completion.message, "tool_calls": numbered or None}
    usage = completion.usage
    counts = {**usage.details, **{key: getattr(usage, key) for key in _COUNTS}}
    return {"choices": [{"index": 0, "message": message, "finish_reason": completion.finish_reason}], "usage": counts}


def _is_complete(chunk: Mapping[str, Any]) -> bool:
    """Whether the chunk is a whole completion with the ids of all calls. Each reading would make up a missing id."""
    message = whole_message(chunk)
    calls: Any = () if message is None else message.get("tool_calls") or ()
    return message is not None and is_array(calls) and all(is_object(call) and bool(call.get("id")) for call in calls)

"""Output items of the Responses API in messages, and messages without them.

Only the provider that sent an item can read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .json import is_array, is_object
from .messages import Message

# The key of an assistant message for its output items, unchanged and in order.
OUTPUT_ITEMS = "responses_output"
# Keys of messages from the Responses API. Servers of Chat Completions reject unknown keys.
_RESPONSES_KEYS = frozenset({OUTPUT_ITEMS, "reasoning_content"})


def without_items(messages: Sequence[Message]) -> list[Message]:
    """Return the messages without output items.

    A message that has only items, for example an image that the provider generated, is removed.
    """
    stripped = (_without_items(message) if OUTPUT_ITEMS in message else message for message in messages)
    return [message for message in stripped if message]


def _without_items(message: Message) -> Message:
    rest = {key: value for key, value in message.items() if key not in _RESPONSES_KEYS}
    return rest if any(value for key, value in rest.items() if key != "role") else {}


def chunk_without_items(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the chunk of a completion without output items."""
    choices = chunk.get("choices")
    return {**chunk, "choices": [*map(_choice_without_items, choices)]} if is_array(choices) else chunk


def _choice_without_items(choice: Any) -> Any:
    for key in ("message", "delta"):
        wire = choice.get(key) if is_object(choice) else None
        if is_object(wire) and OUTPUT_ITEMS in wire:
            return {**choice, key: {name: value for name, value in wire.items() if name not in _RESPONSES_KEYS}}
    return choice

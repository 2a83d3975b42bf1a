"""The messages of a request, as servers of Chat Completions take them.

Decides what of the history such a server could not read. Never sends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from aswarm._content import Part, described, text_part
from aswarm._json import is_array, is_object
from aswarm._messages import Message, text_of

from .responses_items import OUTPUT_ITEMS

# Keys that only the Responses API puts on a message. Servers of Chat Completions refuse unknown keys.
_RESPONSES_KEYS = frozenset({OUTPUT_ITEMS, "reasoning_content"})


def chat_messages(messages: Sequence[Message]) -> list[Message]:
    """The messages without items of the Responses API, and with images and files of results in messages of the user."""
    return list(_media_after_results(without_items(messages)))


def is_chat(messages: Iterable[Message]) -> bool:
    """Whether a server of Chat Completions can read these messages as they are."""
    for message in messages:  # one step for each message of a long history
        if OUTPUT_ITEMS in message or (isinstance(message.get("content"), list) and message.get("role") == "tool"):
            return False
    return True


def without_items(messages: Sequence[Message]) -> list[Message]:
    """The messages without the items of the Responses API, which only the provider of the answer can read.

    A message that has nothing else, such as an image that the provider made, is left out.
    """
    stripped = (_without_items(message) if OUTPUT_ITEMS in message else message for message in messages)
    return [message for message in stripped if message]


def chunk_without_items(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """The chunk of a completion without the items of the Responses API."""
    choices = chunk.get("choices")
    return {**chunk, "choices": [*map(_choice_without_items, choices)]} if is_array(choices) else chunk


def _choice_without_items(choice: Any) -> Any:
    for key in ("message", "delta"):
        wire = choice.get(key) if is_object(choice) else None
        if is_object(wire) and OUTPUT_ITEMS in wire:
            return {**choice, key: {name: value for name, value in wire.items() if name not in _RESPONSES_KEYS}}
    return choice


def _without_items(message: Message) -> Message:
    rest = {key: value for key, value in message.items() if key not in _RESPONSES_KEYS}
    return rest if any(value for key, value in rest.items() if key != "role") else {}


def _has_parts(message: Message) -> bool:
    return isinstance(message.get("content"), list) and message.get("role") == "tool"


def _media_after_results(messages: Sequence[Message]) -> Iterator[Message]:
    """Tool messages of text only; images and files follow in a message of the user, after all answers of the block."""
    media: list[Part] = []
    for message in messages:
        if media and message.get("role") != "tool":
            yield {"role": "user", "content": media}
            media = []
        if not _has_parts(message):
            yield message
            continue
        labelled = _labelled_media(message)
        media += labelled
        content = message["content"]
        yield {**message, "content": described(content) if labelled else text_of(content)}
    if media:
        yield {"role": "user", "content": media}


def _labelled_media(message: Message) -> list[Part]:
    parts: list[Any] = message["content"]
    media: list[Any] = [part for part in parts if is_object(part) and part.get("type") != "text"]
    label = text_part(f"From the result of the tool call {message['tool_call_id']}:")
    return [label, *media] if media else []

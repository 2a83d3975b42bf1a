"""The check of a body against the SDK's own types of `responses.create`: missing, wrong and unknown keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import openai.types.responses
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from pydantic import TypeAdapter

_BODIES: dict[bool, TypeAdapter[Any]] = {
    True: TypeAdapter(ResponseCreateParamsStreaming),
    False: TypeAdapter(ResponseCreateParamsNonStreaming),
}


# The oldest versions of the SDK have no types for the newest tools and settings, and would reject them.
TYPES_ARE_COMPLETE = hasattr(openai.types.responses, "NamespaceTool")


def said(text: str) -> dict[str, Any]:
    """Return the item of a message of the assistant that did not come as items."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def check_body(body: Mapping[str, Any]) -> None:
    """Raise an error if the body does not fit. A key that the types do not have is missing in the parsed body."""
    if not TYPES_ARE_COMPLETE:
        return
    typed = {**body, "input": [*map(_as_typed, body["input"])]}
    assert read_to_end(_BODIES[bool(body.get("stream"))].validate_python(typed)) == typed


def _as_typed(item: Any) -> Any:
    # The types allow the parts of an assistant's message only with the id of an answer, which no server requires.
    if item.get("role") != "assistant" or item.get("id"):
        return item
    text = item["content"][0]["text"]
    assert item == said(text)
    return {**item, "content": text}


def read_to_end(value: Any) -> Any:
    """Return the value with its lists read to their end: pydantic checks the items of an `Iterable` only then."""
    if isinstance(value, Mapping):
        return {key: read_to_end(item) for key, item in value.items()}
    return (
        [read_to_end(item) for item in value] if isinstance(value, Iterable) and not isinstance(value, str) else value
    )

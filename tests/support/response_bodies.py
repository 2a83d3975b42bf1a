"""Whether a body fits the SDK's own types of `responses.create`: nothing is missing, of a wrong type, or unknown there."""

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


# The oldest versions of the SDK have no types for the newest tools and settings, and would refuse them.
TYPES_ARE_COMPLETE = hasattr(openai.types.responses, "NamespaceTool")


def check_body(body: Mapping[str, Any]) -> None:
    """Raises where the body does not fit. A key that the types do not have is missing from what they make of the body."""
    if not TYPES_ARE_COMPLETE:
        return
    assert _read(_BODIES[bool(body.get("stream"))].validate_python(body)) == body


def _read(value: Any) -> Any:
    """The value with its lists read to their end: pydantic checks the items of an `Iterable` only then."""
    if isinstance(value, Mapping):
        return {key: _read(item) for key, item in value.items()}
    return [_read(item) for item in value] if isinstance(value, Iterable) and not isinstance(value, str) else value

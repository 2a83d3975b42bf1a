"""The attributes of a request: its settings, as the conventions name them.

A value whose type is not that of the conventions is left out, because OpenTelemetry logs a warning for some of them.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from aswarm._json import is_array, is_object
from aswarm._tools.conversion import sendable
from aswarm._wire.request import CompletionRequest

from . import _conventions as names
from ._telemetry import Attributes

_NUMBERS = {
    "frequency_penalty": names.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": names.REQUEST_PRESENCE_PENALTY,
    "temperature": names.REQUEST_TEMPERATURE,
    "top_p": names.REQUEST_TOP_P,
}
_INTEGERS = {
    "max_tokens": names.REQUEST_MAX_TOKENS,
    "max_completion_tokens": names.REQUEST_MAX_TOKENS,
    "seed": names.REQUEST_SEED,
    "n": names.REQUEST_CHOICE_COUNT,
}
_BITS = 63  # the protocol of OpenTelemetry has integers of 64 bits, and one of them is the sign


def model_of(request: CompletionRequest) -> str:
    """The name of the requested model; empty if it is not a text."""
    model: Any = request.body.get("model")
    return sendable(model) if isinstance(model, str) else ""


def settings_of(request: CompletionRequest) -> Attributes:
    """The attributes of the settings of a request. One choice is not an attribute: it is the default."""
    body = request.body
    found: Attributes = {}
    for key, name in _NUMBERS.items():
        value = body.get(key)
        if isinstance(value, float) or _is_integer(value):
            found[name] = float(value)
    for key, name in _INTEGERS.items():
        if _is_integer(value := body.get(key)):
            found[name] = value
    if found.get(names.REQUEST_CHOICE_COUNT) == 1:
        del found[names.REQUEST_CHOICE_COUNT]
    if stops := _stop_sequences(body.get("stop")):
        found[names.REQUEST_STOP_SEQUENCES] = stops
    if request.stream:
        found[names.REQUEST_STREAM] = True
    if output_type := _output_type(body.get("response_format")):
        found[names.OUTPUT_TYPE] = output_type
    return found


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= _BITS


def _stop_sequences(stop: Any) -> list[str]:
    return [sendable(text) for text in (stop if is_array(stop) else [stop]) if isinstance(text, str)]


def _output_type(response_format: Any) -> str | None:
    kind: Any = response_format.get("type") if is_object(response_format) else None
    return {"json_schema": "json", "json_object": "json", "text": "text"}.get(str(kind))

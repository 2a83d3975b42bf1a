"""Attributes of requests, answers and calls, in the form of the conventions.

A value with a wrong type is omitted, because OpenTelemetry logs a warning for some of these values. Spans with content have
messages, arguments and results as JSON. They do not have the bytes of images, sounds and files, because an exporter rejects a
span that is too large.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

from aswarm._values.json import is_array, is_object, jsonable
from aswarm._values.text import sendable
from aswarm._values.usage import CacheMiss, Usage
from aswarm.extensions import CompletionRequest, ToolCall, ToolOutcome

from . import _conventions as names
from ._telemetry import Attributes

Json = dict[str, Any]
_INSTRUCTIONS = ("system", "developer")
_REASONING = ("reasoning_content", "reasoning")
_OUTPUT_TYPES = {"json_schema": "json", "json_object": "json", "text": "text"}
_BITS = 63  # the protocol of OpenTelemetry has signed integers of 64 bits


def model_of(request: CompletionRequest) -> str:
    """Return the name of the requested model; empty if it is not a text."""
    model: Any = request.body.get("model")
    return sendable(model) if isinstance(model, str) else ""


def settings_of(request: CompletionRequest) -> Attributes:
    """Return the attributes of the settings of a request. Omit `n` if it is 1, the default."""
    body = request.body
    attributes: Attributes = {}
    for key, name in names.REQUEST_FLOATS.items():
        value = body.get(key)
        if isinstance(value, float) or _is_integer(value):
            attributes[name] = float(value)
    for key, name in names.REQUEST_INTEGERS.items():
        if _is_integer(value := body.get(key)) and (key, value) != ("n", 1):
            attributes[name] = value
    stop = body.get("stop")
    if stops := [sendable(text) for text in (stop if is_array(stop) else [stop]) if isinstance(text, str)]:
        attributes[names.REQUEST_STOP_SEQUENCES] = stops
    if request.stream:
        attributes[names.REQUEST_STREAM] = True
    response_format = body.get("response_format")
    if is_object(response_format) and (output_type := _OUTPUT_TYPES.get(str(response_format.get("type")))):
        attributes[names.OUTPUT_TYPE] = output_type
    return attributes


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= _BITS


def token_counts(usage: Usage) -> dict[str, int]:
    """Return the counts of the provider. Empty if it has counted neither input nor output tokens."""
    if not (usage.prompt_tokens or usage.completion_tokens):
        return {}
    counts = {names.USAGE_INPUT_TOKENS: usage.prompt_tokens, names.USAGE_OUTPUT_TOKENS: usage.completion_tokens}
    for (group, key), name in names.USAGE_DETAILS.items():
        details = usage.details.get(group)
        count = details.get(key) if is_object(details) else None
        if isinstance(count, int | float):
            counts[name] = int(count)
    return counts


def cost_of(usage: Usage) -> Attributes:
    """Return the cost. Empty if it is unknown."""
    return {} if (cost := usage.cost) is None else {names.COST: cost}


def miss_of(miss: CacheMiss | None) -> Attributes:
    """Return the miss of the prompt cache. Empty without one."""
    if miss is None:
        return {}
    where = {} if miss.where is None else {names.CACHE_MISS_WHERE: sendable(miss.where)}
    counts = {names.CACHE_MISS_KEPT: miss.kept_tokens, names.CACHE_MISS_LOST: miss.lost_tokens}
    return {names.CACHE_MISS_KIND: miss.kind, **where, **counts}


# --- content ----------------------------------------------------------------------------------------------------------


def content_of_request(request: CompletionRequest) -> Attributes:
    """Return the instructions, the messages and the functions of a request. The first message may be the instructions."""
    messages: list[Any] = request.body["messages"]
    attributes: Attributes = {}
    if messages and messages[0].get("role") in _INSTRUCTIONS:
        attributes[names.SYSTEM_INSTRUCTIONS] = _json_text(_parts(messages[0].get("content")))
        messages = messages[1:]
    attributes[names.INPUT_MESSAGES] = _json_text([_message(message) for message in messages])
    if tools := request.body.get("tools"):
        attributes[names.TOOL_DEFINITIONS] = _json_text([_definition(tool) for tool in tools])
    return attributes


def content_of_answer(message: Mapping[str, Any], finish_reason: str) -> Attributes:
    reason = "tool_call" if finish_reason == "tool_calls" else finish_reason
    return {names.OUTPUT_MESSAGES: _json_text([{**_message(message), "finish_reason": reason}])}


def content_of_call(call: ToolCall) -> Attributes:
    """Return the arguments of a call, as the model sent them."""
    return {names.TOOL_CALL_ARGUMENTS: sendable(call.arguments)}


def content_of_outcome(outcome: ToolOutcome) -> Attributes:
    """Return the result of a call: the text or the content parts for the model."""
    content = outcome.content
    return {names.TOOL_CALL_RESULT: sendable(content) if isinstance(content, str) else _json_text(content)}


def _json_text(value: Any) -> str:
    return json.dumps(jsonable(value), ensure_ascii=False)


def _message(message: Mapping[str, Any]) -> Json:
    role = message.get("role") or "assistant"
    content = message.get("content")
    if role == "tool":
        parts = [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}]
    else:
        reasoning = [message[key] for key in _REASONING if isinstance(message.get(key), str)]
        parts = [{"type": "reasoning", "content": text} for text in reasoning[:1]] + _parts(content)
        parts += [{"type": "text", "content": text} for text in [message.get("refusal")] if text]
        parts += map(_call, message.get("tool_calls") or ())
    return {"role": role, "parts": parts}


def _parts(content: Any) -> list[Json]:
    if is_array(content):
        return [_part(part) for part in content]
    return [{"type": "text", "content": str(content)}] if content else []


def _part(part: Any) -> Json:
    kind = part.get("type") if is_object(part) else None
    if kind == "text":
        return {"type": "text", "content": part.get("text") or ""}
    if kind == "image_url":
        url: str = part["image_url"].get("url") or ""
        if not url.startswith("data:"):
            return {"type": "uri", "modality": "image", "uri": url}
        mime_type = url.removeprefix("data:").partition(";")[0]
        return {"type": "blob", "modality": "image", "mime_type": mime_type, "content": ""}
    return {"type": str(kind or "unknown")}  # a sound or a file, without its bytes


def _call(call: Mapping[str, Any]) -> Json:
    function: Any = call.get("function") or call.get("custom") or {}
    arguments = function.get("arguments") or function.get("input")
    return {
        "type": "tool_call",
        "id": call.get("id"),
        "name": function.get("name") or "",
        "arguments": _arguments(arguments),
    }


def _arguments(text: Any) -> Any:
    """Return the arguments as an object. If the text is not JSON, return the text."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


def _definition(tool: Mapping[str, Any]) -> Json:
    kind = str(tool.get("type"))
    function: Any = tool.get(kind) or {}
    details = {key: function.get(key) for key in ("description", "parameters") if function.get(key)}
    return {"type": kind, "name": function.get("name") or "", **details}

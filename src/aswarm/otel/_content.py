"""Messages, arguments and results in the JSON forms of the conventions, for spans with content.

The bytes of images, sounds and files are left out: an exporter refuses a span that is too large.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aswarm._json import is_array, is_object, jsonable
from aswarm._run.plan import ToolCall, ToolOutcome
from aswarm._tools.conversion import sendable
from aswarm._wire.request import CompletionRequest

from . import _conventions as names
from ._telemetry import Attributes

Json = dict[str, Any]
_INSTRUCTIONS = ("system", "developer")
_REASONING = ("reasoning_content", "reasoning")


def content_of_request(request: CompletionRequest) -> Attributes:
    """The instructions, the messages and the functions of a request. The first message may be the instructions."""
    messages: list[Any] = request.body["messages"]
    found: Attributes = {}
    if messages and messages[0].get("role") in _INSTRUCTIONS:
        found[names.SYSTEM_INSTRUCTIONS] = _json_text(_parts(messages[0].get("content")))
        messages = messages[1:]
    found[names.INPUT_MESSAGES] = _json_text([_message(message) for message in messages])
    if tools := request.body.get("tools"):
        found[names.TOOL_DEFINITIONS] = _json_text([_definition(tool) for tool in tools])
    return found


def content_of_answer(message: Mapping[str, Any], finish_reason: str) -> Attributes:
    """The message of a completion."""
    reason = "tool_call" if finish_reason == "tool_calls" else finish_reason
    return {names.OUTPUT_MESSAGES: _json_text([{**_message(message), "finish_reason": reason}])}


def content_of_call(call: ToolCall) -> Attributes:
    """The arguments of a call: the JSON text that the model has sent."""
    return {names.TOOL_CALL_ARGUMENTS: sendable(call.arguments)}


def content_of_outcome(outcome: ToolOutcome) -> Attributes:
    """The result of a call: the text or the content parts that the model gets."""
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
        return _media("image", part["image_url"].get("url") or "")
    return {"type": str(kind or "unknown")}  # a sound or a file: its bytes are left out


def _media(modality: str, url: str) -> Json:
    if not url.startswith("data:"):
        return {"type": "uri", "modality": modality, "uri": url}
    mime_type = url.removeprefix("data:").partition(";")[0]
    return {"type": "blob", "modality": modality, "mime_type": mime_type, "content": ""}


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
    """The arguments as an object; the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


def _definition(tool: Mapping[str, Any]) -> Json:
    kind = str(tool.get("type"))
    function: Any = tool.get(kind) or {}
    found = {key: function.get(key) for key in ("description", "parameters") if function.get(key)}
    return {"type": kind, "name": function.get("name") or "", **found}

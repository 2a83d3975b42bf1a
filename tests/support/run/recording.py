"""Messages of a history with tool calls."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def wire_call(call_id: str = "c", name: str = "look", arguments: str = "{}") -> Json:
    """Return a tool call as a provider sends it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asking(*calls: Json, content: str | None = None) -> Json:
    """Return an assistant message with these calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def told(call_id: str, content: str = "seen", **more: Any) -> Json:
    """Return a tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}

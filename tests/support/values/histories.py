"""Short helpers to write the messages of a history."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def made_call(call_id: str = "c1", name: str = "f", arguments: Any = "{}", **extra: Any) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}, **extra}


def asking(*calls: Message, **extra: Any) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **extra}


def answer(call_id: str = "c1", content: str = "done", **extra: Any) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **extra}


USER: Message = {"role": "user", "content": "Hi"}

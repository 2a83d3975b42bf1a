"""Scripted answers in the form of Anthropic's Messages API."""

from __future__ import annotations

import json
from typing import Any

from aswarm.testing import ScriptedAnswer
from tests.support.anthropic_rules import events_of
from tests.support.providers.loopback import Reply

Json = dict[str, Any]


def claude_message(answer: ScriptedAnswer, model: str) -> Json:
    """Return a whole answer."""
    calls = [
        {"type": "tool_use", "id": each.id, "name": each.name, "input": json.loads(each.arguments)}
        for each in answer.calls
    ]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [*([{"type": "text", "text": answer.text}] if answer.text else []), *calls],
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


def spoken_by_claude(answer: ScriptedAnswer, body: Json, *, cut: int | None = None) -> Reply:
    """Return a correct answer, whole or streamed."""
    message = claude_message(answer, body["model"])
    if not body.get("stream"):
        return Reply([json.dumps(message).encode()], content_type="application/json")
    events = events_of(message, cut or 1000)
    return Reply(
        [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events], pause=answer.pause
    )

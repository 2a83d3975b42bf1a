"""The answers of the fake server in the form of the Responses API: one whole response, or its events. Standard library only.

They have the form of OpenAI's answers to a request with `store=False`: encrypted reasoning before the other items, an event for
each step of an item, and the whole response at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]

_ENCRYPTED = "gAAAAABo" + "x" * 600  # about the size of a short piece of reasoning
_USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 10},
    "total_tokens": 120,
}
_ENVELOPE = {
    "id": "resp_fake",
    "object": "response",
    "created_at": 1,
    "model": "fake",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": "low", "summary": None},
    "service_tier": "default",
    "store": False,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}


def response_of(calls: Sequence[Json], text: str) -> Json:
    """Return the whole response. It has these calls, which are in the form of Chat Completions; without calls, it has the text."""
    reasoning: Json = {"id": "rs_0", "type": "reasoning", "summary": [], "encrypted_content": _ENCRYPTED}
    part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message: Json = {
        "id": "msg_0",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "phase": "final_answer",
        "content": [part],
    }
    made: list[Json] = [
        {
            "id": f"fc_{index}",
            "type": "function_call",
            "status": "completed",
            "call_id": call["id"],
            **call["function"],
        }
        for index, call in enumerate(calls)
    ]
    return {**_ENVELOPE, "status": "completed", "output": [reasoning, *(made or [message])], "usage": _USAGE}


def events_of(response: Json, pieces: Sequence[str]) -> Iterator[Json]:
    """Yield the events of the response. `pieces`: the pieces of its text."""
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [{"type": f"response.{step}", "response": begun} for step in ("created", "in_progress")]
    for index, item in enumerate(response["output"]):
        empty: Json = {"status": "in_progress", "content": [], "arguments": ""}
        started = {**item, **{key: value for key, value in empty.items() if key in item}}
        steps = [
            {"type": "response.output_item.added", "item": started},
            *_steps(item, pieces),
            {"type": "response.output_item.done", "item": item},
        ]
        events += [{**step, "output_index": index} for step in steps]
    events.append({"type": "response.completed", "response": response})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _steps(item: Json, pieces: Sequence[str]) -> Iterator[Json]:
    if item["type"] == "function_call":
        kind, of_item = "response.function_call_arguments", {"item_id": item["id"]}
        yield {"type": f"{kind}.delta", **of_item, "delta": item["arguments"], "obfuscation": "x" * 8}
        yield {"type": f"{kind}.done", **of_item, "name": item["name"], "arguments": item["arguments"]}
    if item["type"] == "message":
        (part,) = item["content"]
        place = {"item_id": item["id"], "content_index": 0}
        yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        for piece in pieces:
            delta = {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
            yield {**delta, "obfuscation": "x" * (16 - len(piece) % 16)}
        yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}

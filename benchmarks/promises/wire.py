"""The answers of the scripted server in the formats of both APIs: whole, or as events."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from responses_api import events_of, response_of
from scripts import Turn

Json = dict[str, Any]
_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def _calls(turn: Turn) -> list[Json]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in turn.calls
    ]


def whole(turn: Turn, number: int, *, responses: bool) -> Json:
    """Return the body of an answer that is not streamed. `number`: of the request, for new ids."""
    if responses:
        return _numbered(response_of(_calls(turn), turn.text), number)
    message: Json = {"role": "assistant", "content": turn.text or None, "refusal": None}
    if turn.calls:
        message["tool_calls"] = _calls(turn)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(turn)}
    return {**_envelope(number, "chat.completion"), "choices": [choice], "usage": _USAGE}


def events(turn: Turn, number: int, *, responses: bool) -> Iterator[bytes]:
    """Yield the events of a streamed answer. If the turn is cut, the last event has half of the arguments of a call."""
    for event in _events_of_response(turn, number) if responses else _chunks(turn, number):
        name = f"event: {event['type']}\n" if responses else ""
        yield f"{name}data: {json.dumps(event)}\n\n".encode()
    if not responses and not turn.cut:
        yield b"data: [DONE]\n\n"


def _pieces(turn: Turn) -> list[str]:
    words = turn.text.split(" ")
    return [word + " " * (position < len(words) - 1) for position, word in enumerate(words)]


def _half(arguments: str) -> str:
    return '{"gue' if arguments == "{}" else arguments[: len(arguments) // 2]


def _finish(turn: Turn) -> str:
    return "tool_calls" if turn.calls else "stop"


def _envelope(number: int, kind: str) -> Json:
    return {"id": f"chatcmpl-{number}", "object": kind, "created": 1, "model": "scripted"}


def _deltas(turn: Turn) -> Iterator[Json]:
    yield {"role": "assistant", "content": None if turn.calls else "", "refusal": None}
    for index, call in enumerate(_calls(turn)):
        function = call["function"]
        yield {"tool_calls": [{"index": index, **call, "function": {**function, "arguments": ""}}]}
        arguments = _half(function["arguments"]) if turn.cut else function["arguments"]
        yield {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
    for piece in _pieces(turn) if turn.text else ():
        yield {"content": piece}


def _chunks(turn: Turn, number: int) -> Iterator[Json]:
    envelope = _envelope(number, "chat.completion.chunk")
    for delta in _deltas(turn):
        yield {**envelope, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]}
    if not turn.cut:
        end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": _finish(turn)}
        yield {**envelope, "choices": [end]}
        yield {**envelope, "choices": [], "usage": _USAGE}


def _events_of_response(turn: Turn, number: int) -> Iterator[Json]:
    response = _numbered(response_of(_calls(turn), turn.text), number)
    for event in events_of(response, _pieces(turn)):
        if turn.cut and event["type"] == "response.function_call_arguments.delta":
            yield {**event, "delta": _half(event["delta"])}
            return
        yield event


def _numbered(response: Json, number: int) -> Json:
    # No reasoning: a model without it, so that the rules about its items do not matter here.
    output = [{**item, "id": f"{item['id']}_{number}"} for item in response["output"] if item["type"] != "reasoning"]
    return {**response, "id": f"resp_{number}", "output": output}

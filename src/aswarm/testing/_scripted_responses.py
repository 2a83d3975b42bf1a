"""The scripted model over the Responses API: whole responses, events, and the messages of a request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aswarm._values.found_tools import SEARCH_TOOLS

from ._answer import CallKind, Cut, ScriptedAnswer, ScriptedCall, pieces, wire_call

Json = dict[str, Any]

_CALL_TYPES: Mapping[CallKind, str] = {"function": "function_call", "custom": "custom_tool_call"}
_CALL_KINDS: Mapping[str, CallKind] = {name: kind for kind, name in _CALL_TYPES.items()}
_CONTENT = ("arguments", "content", "input", "summary")  # keys of items whose values are sent in pieces
# A response repeats these parts of the request. The types of openai require them.
_REQUEST_FIELDS: Json = {"created_at": 0, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
_NO_REQUEST: Json = {"input": ()}
_DEFINITION = ("name", "description", "parameters")
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response(answer: ScriptedAnswer, request: Mapping[str, Any] = _NO_REQUEST) -> Json:
    """Return the answer to a request, as one whole `response` object."""
    reason = _INCOMPLETE.get(answer.finish)
    return {
        "id": "scripted",
        "object": "response",
        "model": "scripted",
        **_REQUEST_FIELDS,
        "status": "incomplete" if reason else "completed",
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "output": [{"id": f"item_{index}", **item} for index, item in enumerate(_items(answer, request))],
        "usage": _usage(answer),
    }


def _items(answer: ScriptedAnswer, request: Mapping[str, Any]) -> Iterator[Json]:
    extra = dict(answer.extra)
    if reasoning := extra.pop("reasoning_content", None):
        summary = [{"type": "summary_text", "text": reasoning}]
        yield {"type": "reasoning", "summary": summary, "encrypted_content": f"encrypted {reasoning}"}
    yield from extra.pop("responses_output", ())
    parts: list[Json] = [{"type": "output_text", "text": answer.text, "annotations": []}] if answer.text else []
    if refusal := extra.pop("refusal", None):
        parts.append({"type": "refusal", "refusal": refusal})
    if extra:
        raise AssertionError(f"a scripted answer has keys that the Responses API does not have: {', '.join(extra)}")
    if parts:
        yield {"type": "message", "status": "completed", "role": "assistant", "content": parts}
    for each in answer.calls:
        yield {"status": "completed", "call_id": each.id, **_call(each, request)}


def _call(call: ScriptedCall, request: Mapping[str, Any]) -> Json:
    if call.name == SEARCH_TOOLS and any(tool.get("execution") == "client" for tool in request.get("tools", ())):
        return {"type": "tool_search_call", "execution": "client", "arguments": json.loads(call.arguments)}
    # As OpenAI, the model calls a function that a tool search has found in a namespace of the same name.
    found = {tool["name"] for item in _input(request) for tool in item.get("tools", ())}
    namespace = {"namespace": call.name} if call.name in found else {}
    return {"type": _CALL_TYPES[call.kind], "name": call.name, call.payload: call.arguments, **namespace}


def _input(request: Mapping[str, Any]) -> list[Json]:
    """Return the items of a request. A text, which openai's client accepts too, is a message of the user."""
    items: str | list[Json] = request["input"]
    return [{"role": "user", "content": items}] if isinstance(items, str) else items


def _usage(answer: ScriptedAnswer) -> Json | None:
    if answer.usage is None:
        return None
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
    names |= {f"{old}_details": f"{new}_details" for old, new in names.items()}
    return {names.get(key, key): value for key, value in answer.usage.items()}


# --- events -----------------------------------------------------------------------------------------------------------


def response_events(
    answer: ScriptedAnswer, cut: Cut = None, request: Mapping[str, Any] = _NO_REQUEST
) -> Iterator[Json]:
    """Yield the answer to a request as the events of a stream, in the order in which OpenAI sends them."""
    whole = response(answer, request)
    begun: Json = {**whole, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(whole["output"]):
        events += [{**event, "output_index": index} for event in _item_events(item, cut)]
    events.append({"type": f"response.{whole['status']}", "response": whole})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _item_events(item: Json, cut: Cut) -> Iterator[Json]:
    empty: Json = {key: type(item[key])() for key in _CONTENT if key in item}
    yield {"type": "response.output_item.added", "item": {**item, **empty}}
    for event in _content_events(item, cut):
        yield {**event, "item_id": item["id"]}
    yield {"type": "response.output_item.done", "item": item}


def _content_events(item: Json, cut: Cut) -> Iterator[Json]:
    if item["type"] == "function_call":
        *deltas, done = _deltas("response.function_call_arguments", item["arguments"], cut, "arguments")
        yield from (*deltas, {**done, "name": item["name"]})
    elif item["type"] == "custom_tool_call":
        yield from _deltas("response.custom_tool_call_input", item["input"], cut, "input")
    for index, part in enumerate(item.get("summary", ())):
        where: dict[str, Any] = {"summary_index": index}
        yield {"type": "response.reasoning_summary_part.added", "part": {**part, "text": ""}, **where}
        yield from _deltas("response.reasoning_summary_text", part["text"], cut, "text", **where)
        yield {"type": "response.reasoning_summary_part.done", "part": part, **where}
    for index, part in enumerate(item.get("content", ())):
        kind = part["type"]
        where = {"content_index": index}
        key = "refusal" if kind == "refusal" else "text"
        logprobs: Json = {"logprobs": []} if kind == "output_text" else {}
        yield {"type": "response.content_part.added", "part": {**part, key: ""}, **where}
        yield from _deltas(f"response.{kind}", part[key], cut, key, **where, **logprobs)
        yield {"type": "response.content_part.done", "part": part, **where}


def _deltas(kind: str, text: str, cut: Cut, key: str, **more: Any) -> Iterator[Json]:
    for piece in pieces(text, cut):
        yield {"type": f"{kind}.delta", "delta": piece, **more}
    yield {"type": f"{kind}.done", key: text, **more}


# --- the messages of a request ----------------------------------------------------------------------------------------


def messages_of(body: Mapping[str, Any]) -> list[Json]:
    """Return the messages in the body of a request, including the system message, in the form of Chat Completions."""
    instructions = body.get("instructions")
    messages: list[Json] = [] if instructions is None else [{"role": "system", "content": instructions}]
    for item in _input(body):
        _append(messages, item)
    return messages


def _append(messages: list[Json], item: Mapping[str, Any]) -> None:
    kind = item.get("type", "message")
    if kind == "tool_search_call":
        scripted = ScriptedCall(SEARCH_TOOLS, json.dumps(item["arguments"]), item["call_id"])
        _last_assistant(messages).setdefault("tool_calls", []).append(wire_call(scripted))
    elif kind == "tool_search_output":
        lines = [json.dumps({key: tool.get(key) for key in _DEFINITION}) for tool in item["tools"]]
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": "\n".join(lines)})
    elif kind in _CALL_KINDS:
        written = item.get("arguments") or item.get("input") or ""
        scripted = ScriptedCall(item["name"], written, item["call_id"], _CALL_KINDS[kind])
        _last_assistant(messages).setdefault("tool_calls", []).append(wire_call(scripted))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])})
    elif kind == "message" and item["role"] == "assistant":
        _last_assistant(messages, is_new=True)["content"] = _text(item["content"])
    elif kind == "message":
        messages.append({"role": item["role"], "content": item["content"]})


def _last_assistant(messages: list[Json], *, is_new: bool = False) -> Json:
    if is_new or not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)

"""The faults of a request to Chat Completions or to the Responses API. Needs the `openai` package, and knows no framework.

Two kinds of rules: the official types of the package (missing keys, wrong values), and the pairs of calls and results, which the
types do not have. OpenAI's servers answer each of these faults with a 400.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from openai.types.responses.response_create_params import (
    ResponseCreateParamsNonStreaming,
    ResponseCreateParamsStreaming,
)
from pydantic import TypeAdapter, ValidationError

Json = dict[str, Any]

_TYPES: Mapping[tuple[bool, bool], TypeAdapter[Any]] = {
    (True, True): TypeAdapter(ResponseCreateParamsStreaming),
    (True, False): TypeAdapter(ResponseCreateParamsNonStreaming),
    (False, True): TypeAdapter(CompletionCreateParamsStreaming),
    (False, False): TypeAdapter(CompletionCreateParamsNonStreaming),
}


@dataclass(frozen=True, slots=True)
class Item:
    """A part of the history, in the same form for both APIs.

    `kind`: "system", "user", "assistant", "call" or "result". `group`: the number of the message; in the Responses API, calls
    that follow each other have the same group.
    """

    kind: str
    text: str
    call_id: str = ""
    name: str = ""
    group: int = 0


def faults_of(body: Json) -> list[str]:
    """Return the faults of a request, each as a sentence. Empty for a valid request."""
    types = list(_faults_of_types(body))
    if types:
        return types
    items = items_of(body)
    pairs = _pairs_of_responses(items) if "input" in body else _pairs_of_chat(items)
    return [*pairs, *_faults_of_arguments(items)]


# --- types ------------------------------------------------------------------------------------------------------------


def _faults_of_types(body: Json) -> Iterator[str]:
    adapter = _TYPES["input" in body, bool(body.get("stream"))]
    try:
        _read_to_end(adapter.validate_python(_as_accepted(body)))
    except ValidationError as error:
        errors = [
            (".".join(map(str, each["loc"])), each["type"], each["msg"]) for each in error.errors(include_url=False)
        ]
        # A message is tried as each type of the union. The errors of the types with another role say nothing.
        others = {loc.rpartition(".")[0] for loc, kind, _ in errors if kind == "literal_error"}
        own = [(loc, msg) for loc, _, msg in errors if not any(loc.startswith(other) for other in others if other)]
        for loc, msg in own[:3] or [(loc, msg) for loc, _, msg in errors[:1]]:
            yield f"{loc}: {msg}"


def _as_accepted(body: Json) -> Json:
    # The servers accept more than the types: the parts of an assistant's message without the id of an answer, and a function
    # without `strict` (https://github.com/vercel/ai/pull/15889).
    if "input" not in body:
        return body
    given, tools = body["input"], body.get("tools")
    typed = {**body, "input": [_as_typed(item) for item in given]} if isinstance(given, list) else body
    return {**typed, "tools": [{"strict": None, **tool} for tool in tools]} if isinstance(tools, list) else typed


def _as_typed(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("role") != "assistant" or item.get("id"):
        return item
    return {**item, "content": _text(item.get("content"))}


def _read_to_end(value: Any) -> Any:
    # pydantic checks the items of an `Iterable` only when they are read.
    if isinstance(value, Mapping):
        return {key: _read_to_end(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_read_to_end(item) for item in value]
    return value


# --- items ------------------------------------------------------------------------------------------------------------


def items_of(body: Json) -> list[Item]:
    """Return the instructions and the history of a request."""
    if "input" not in body:
        return [item for group, message in enumerate(body["messages"]) for item in _of_message(message, group)]
    given = body["input"]
    items = [Item("system", body["instructions"])] if body.get("instructions") else []
    if isinstance(given, str):
        return [*items, Item("user", given)]
    group, before = 0, ""
    for each in given:
        kind = each.get("type", "message")
        group += not (kind == before == "function_call")
        before = kind
        items += _of_input(each, kind, group)
    return items


def _of_message(message: Json, group: int) -> Iterator[Item]:
    role = message["role"]
    if role == "tool":
        yield Item("result", _text(message["content"]), message["tool_call_id"], group=group)
        return
    if text := _text(message.get("content")):
        yield Item("system" if role == "developer" else role, text, group=group)
    for call in message.get("tool_calls") or ():
        function = call.get("function") or call["custom"]
        yield Item("call", function.get("arguments", ""), call["id"], function["name"], group)


def _of_input(item: Json, kind: str, group: int) -> Iterator[Item]:
    if kind == "message":
        role = item["role"]
        yield Item("system" if role == "developer" else role, _text(item["content"]), group=group)
    elif kind == "function_call":
        yield Item("call", item["arguments"], item["call_id"], item["name"], group)
    elif kind == "function_call_output":
        yield Item("result", _text(item["output"]), item["call_id"], group=group)


def _text(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(part.get("text", "") for part in content)


def parameters_of(body: Json) -> dict[str, list[str]]:
    """Return the names of the required parameters of each function of a request."""
    functions = [tool.get("function") or tool for tool in body.get("tools") or ()]
    return {
        each["name"]: list((each.get("parameters") or {}).get("required", ())) for each in functions if "name" in each
    }


# --- pairs of calls and results ---------------------------------------------------------------------------------------


def _pairs_of_chat(items: list[Item]) -> Iterator[str]:
    """Yield the faults: the results of a message's calls follow the message, one for each call."""
    open_calls: dict[str, str] = {}
    group = -1
    for item in items:
        if item.kind == "result":
            if open_calls.pop(item.call_id, None) is None:
                yield f"the result of {item.call_id!r} follows no message with this call"
            continue
        if item.group != group and open_calls:
            yield from _without_result(open_calls)
            open_calls = {}
        group = item.group
        if item.kind == "call":
            if item.call_id in open_calls:
                yield f"two calls of one message have the id {item.call_id!r}"
            open_calls[item.call_id] = item.name
    yield from _without_result(open_calls)


def _pairs_of_responses(items: list[Item]) -> Iterator[str]:
    """Yield the faults: each call has one result, after the call. Other items may stand between them."""
    open_calls: dict[str, str] = {}
    for item in items:
        if item.kind == "call":
            if item.call_id in open_calls:
                yield f"two calls have the id {item.call_id!r}"
            open_calls[item.call_id] = item.name
        elif item.kind == "result" and open_calls.pop(item.call_id, None) is None:
            yield f"the result of {item.call_id!r} has no call before it"
    yield from _without_result(open_calls)


def _without_result(open_calls: Mapping[str, str]) -> Iterator[str]:
    for call_id, name in open_calls.items():
        yield f"the call {call_id!r} of {name!r} has no result"


def _faults_of_arguments(items: list[Item]) -> Iterator[str]:
    """Yield the faults: the arguments of a call are a JSON object, which strict providers require."""
    for item in items:
        if item.kind == "call":
            try:
                is_object = isinstance(json.loads(item.text or "{}"), dict)
            except ValueError:
                is_object = False
            if not is_object:
                yield f"the arguments of the call {item.call_id!r} are no JSON object: {item.text!r}"

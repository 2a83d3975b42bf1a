"""Items of the Responses API: the message in the form of Chat Completions that is made from them, and those of tool search.

The model gets the definitions of the found tools at the place of the search, so that the cached prefix of the prompt stays. The
messages of the run have calls of `search_tools` and results in text form, as for any other provider. Sans-IO.

A message from the Responses API contains its items under `OUTPUT_ITEMS`, because reasoning can be sent back only as an item.
The module also decides whether the items of a message may be sent back unchanged. Sans-IO.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aswarm._values.errors import ConfigurationError
from aswarm._values.found_tools import CALL_TOOL, SEARCH_TOOLS, definitions_in
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import INSTRUCTING, Message, call_name, text_of
from aswarm._values.wire_messages import OUTPUT_ITEMS, is_json_object

# A key in a choice of a chunk: the index of a call whose arguments are complete. Only the accumulator reads it.
DONE_CALL = "responses_done_call"
# A key beside a finish reason: whether the provider has refused the answer, so that its calls must not run.
WITHOUT_CALLS = "without_calls"
# The item types of calls, and the key of their arguments or input. `is_call` tells a search of the provider apart.
CALL_TYPES = {"function_call": "arguments", "custom_tool_call": "input", "tool_search_call": "arguments"}
_LOADED_TOOLS = frozenset({"additional_tools", "mcp_list_tools", "tool_search_call", "tool_search_output"})
_REASONING_PARTS = frozenset({"summary_text", "reasoning_text"})
NEXT_PART = "\n\n"  # between two messages of one response, and between two parts of its reasoning
# Items that only a client sends, such as answers to calls. A message of the model with such an item was edited by a caller.
_NOT_OF_A_MODEL = frozenset(
    {"additional_tools", "configuration_update", "item_reference", "mcp_approval_response"}
    | {"computer_call_output", "custom_tool_call_output", "function_call_output", "local_shell_call_output"}
)
# Calls of hosted tools that the client must execute, and the remedy for the error text.
_WITHOUT = "remove its tool from model_settings; a function of the agent can take its place"
_LEFT_TO_CLIENT = {
    "apply_patch_call": _WITHOUT,
    "computer_call": _WITHOUT,
    "local_shell_call": _WITHOUT,
    "mcp_approval_request": 'set "require_approval": "never" on its tool in model_settings',
    "shell_call": "give its tool in model_settings a container of the provider as its environment",
}

Item = Mapping[str, Any]


def message_of(items: Sequence[Item]) -> Message:
    """Return the message for the items of one response. It contains the items under `OUTPUT_ITEMS`, and no empty values."""
    text, refusal, calls = _content_of(items)
    reasoning = [reasoning_text(item) for item in items if item.get("type") == "reasoning"]
    fields = {
        "content": text,
        "refusal": refusal,
        "reasoning_content": NEXT_PART.join(filter(None, reasoning)),
        "tool_calls": calls,
        OUTPUT_ITEMS: list(items),
    }
    return {"role": "assistant", **{key: value for key, value in fields.items() if value}}


def check_hosted_calls(items: Sequence[Item]) -> None:
    """Raise ConfigurationError for a call that the client must execute, because the next request would need its result."""
    for item in items:
        kind = item.get("type")
        environment: Any = item.get("environment")
        in_container = is_object(environment) and environment.get("type") == "container_reference"
        if kind in _LEFT_TO_CLIENT and not (item.get("execution") == "server" or in_container):
            raise ConfigurationError(
                f"the model made a {kind!r}, which needs a result from this program, but aswarm runs only functions of "
                f"agents; {_LEFT_TO_CLIENT[kind]}"
            )


def is_call(item: Item) -> bool:
    """Return whether the item is a call of a function, a custom tool, or the tool search that the client executes."""
    kind = item.get("type")
    return kind in CALL_TYPES and (kind != "tool_search_call" or item.get("execution") == "client")


def call_of(item: Item) -> Message:
    """Return the tool call of an item for which `is_call` is true. A tool search is a call of the function `search_tools`."""
    payload = CALL_TYPES[item["type"]]
    kind = "function" if payload == "arguments" else "custom"
    name, sent = item.get("name") or "", item.get(payload) or ""
    if item["type"] == "tool_search_call":  # its arguments are an object, which is empty until the item is complete
        name, sent = SEARCH_TOOLS, sent and json.dumps(sent, ensure_ascii=False)
    return {"id": item.get("call_id") or item.get("id"), "type": kind, kind: {"name": name, payload: sent}}


def _content_of(items: Sequence[Item]) -> tuple[str, str, list[Message]]:
    texts, refusals, calls = list[str](), list[str](), list[Message]()
    for item in items:
        kind = item.get("type")
        if kind == "message":
            parts = objects_in(item.get("content"))
            texts.append("".join([part.get("text") or "" for part in parts if part.get("type") == "output_text"]))
            refusals += [part.get("refusal") or "" for part in parts if part.get("type") == "refusal"]
        elif is_call(item):
            calls.append(call_of(item))
    return NEXT_PART.join(filter(None, texts)), "".join(refusals), calls


def reasoning_text(item: Item) -> str:
    """Return the visible reasoning of an item: the summary, and the full text if the server sends it."""
    parts = [*objects_in(item.get("summary")), *objects_in(item.get("content"))]
    return NEXT_PART.join(filter(None, [part.get("text") for part in parts if part.get("type") in _REASONING_PARTS]))


def objects_in(parts: Any) -> list[Item]:
    """Return the parts that are objects. Return an empty list if `parts` is not a list."""
    return [part for part in parts if is_object(part)] if is_array(parts) else []


def written_text(message: Message) -> str:
    """Return the text of an assistant message: its content, its refusal, or what it has said; empty if there is none."""
    audio, content = message.get("audio"), message.get("content")
    refusals = "".join(part.get("refusal") or "" for part in objects_in(content))
    transcript = audio.get("transcript") if is_object(audio) else None
    return text_of(content) or message.get("refusal") or refusals or transcript or ""


def items_to_replay(message: Message, readable: Sequence[str], *, searches: bool = False) -> Sequence[Item] | None:
    """Return the items of the message if the API accepts them again. None: send the message without its items.

    `searches`: whether the request has the tool search that the client executes. The items must match the message, because a caller may have edited or trimmed the message. They must come from a model,
    because the history may come from a browser. Invalid arguments of a call become `{}`, so that the items can still be sent.

    The API rejects reasoning without a following item, and items whose reasoning was removed. The API does not store
    reasoning, so it also rejects reasoning that has none of the `readable` keys.
    """
    items = message.get(OUTPUT_ITEMS)
    if not (is_array(items) and items and all(map(_is_of_model, items))):
        return None
    items = [*map(_with_arguments, items)]
    if not searches and any(item["type"] == "tool_search_call" and is_call(item) for item in items):
        return None
    reasoning = [item for item in items if item["type"] == "reasoning"]
    if reasoning and (items[-1] is reasoning[-1] or not all(any(map(item.get, readable)) for item in reasoning)):
        return None
    if message.get("reasoning_content") and not reasoning:
        return None
    return items if _matches(message, items) else None


def is_compaction(item: Item) -> bool:
    """Return whether the item stands for all items before it: the server has compacted them (`context_management`)."""
    return item.get("type") == "compaction" and bool(item.get("encrypted_content"))


def from_compaction(items: Sequence[Item]) -> Sequence[Item] | None:
    """Return the items of one response from its last compaction item on; None if it has none.

    The answers to calls of this response follow, and the API rejects an answer without its call, and a call without its
    reasoning. So nothing is left out if a call precedes the item.
    """
    start = next((at for at in range(len(items) - 1, -1, -1) if is_compaction(items[at])), None)
    if start is None:
        return None
    return items if any(map(is_call, items[:start])) else items[start:]


def outlives_compaction(item: Item) -> bool:
    """Return whether an item is still sent after a later compaction item: instructions, and definitions of loaded tools."""
    return item.get("role") in INSTRUCTING or item.get("type") in _LOADED_TOOLS


def _with_arguments(item: Item) -> Item:
    """Return the item. Replace arguments that are not a JSON object by `{}`, as in a message without items."""
    is_broken = item["type"] == "function_call" and not is_json_object(item.get("arguments"))
    return {**item, "arguments": "{}"} if is_broken else item


def _is_of_model(item: Any) -> bool:
    if not is_object(item) or not isinstance(kind := item.get("type"), str) or kind in _NOT_OF_A_MODEL:
        return False
    parts = [part for key in ("content", "summary") if is_array(value := item.get(key)) for part in value]
    return item.get("role") in (None, "assistant") and all(
        is_object(part) and all(isinstance(part.get(key), str | None) for key in ("text", "refusal")) for part in parts
    )


def _matches(message: Message, items: Sequence[Item]) -> bool:
    text, refusal, calls = _content_of(items)
    if text_of(message.get("content")) != text or (message.get("refusal") or "") != refusal:
        return False
    own_calls: list[Message] = message.get("tool_calls") or []
    return [*map(_identity, own_calls)] == [*map(_identity, calls)]


def _identity(call: Message) -> tuple[Any, str, str]:
    named: Mapping[str, Any] = call.get("function") or call.get("custom") or {}
    return call.get("id"), named.get("name") or "", named.get("arguments") or named.get("input") or ""


# The models with tool search, on 2026-11-27 (developers.openai.com/api/docs/guides/tools-tool-search). gpt-5.4-nano refuses it.
_MODELS = ("gpt-5.4", "gpt-5.5", "gpt-5.6", "gpt-6-", "gpt-6.1-", "gpt-6.2-")
_REFUSING = ("gpt-5.4-nano",)
OUTPUT = "tool_search_output"


def has_search(body: Mapping[str, Any]) -> bool:
    """Return whether a body of Chat Completions can have tool search instead of its functions `search_tools` and `call_tool`.

    A choice of tools cannot name a search, so these functions then stay.
    """
    model, own = str(body.get("model")), {SEARCH_TOOLS, CALL_TOOL}
    if not model.startswith(_MODELS) or model.startswith(_REFUSING):
        return False
    offered = {call_name(tool) for tool in body.get("tools") or () if is_object(tool)}
    return own <= offered and own.isdisjoint(_chosen(body.get("tool_choice")))


def _chosen(choice: Any) -> Iterator[str]:
    if is_object(choice):
        yield call_name(choice) or str(choice.get("name"))
        allowed = choice.get("allowed_tools")
        for tool in (allowed if is_object(allowed) else choice).get("tools") or ():
            yield call_name(tool) or str(tool.get("name"))


def with_search(tools: Sequence[Any]) -> Iterator[Any]:
    """Yield the tools with tool search. `tools`: in the form of the Responses API.

    `call_tool` is left out, also if the history has calls of it from another API, so that the start of the prompt never changes.
    """
    for tool in tools:
        name = tool.get("name") if is_object(tool) else None
        if name == SEARCH_TOOLS:
            about = {key: tool[key] for key in ("description", "parameters")}
            yield {"type": "tool_search", "execution": "client", **about}
        elif name != CALL_TOOL:
            yield tool


def search_call(call_id: str, arguments: str) -> Item:
    """Return the item of a call of `search_tools` that has no items."""
    sent: Any = json.loads(arguments) if is_json_object(arguments) else {}
    return {
        "type": "tool_search_call",
        "execution": "client",
        "call_id": call_id,
        "status": "completed",
        "arguments": sent,
    }


def search_output(call_id: str, content: Any) -> Item:
    """Return the item of a result of `search_tools`: the definitions in it."""
    tools = [
        {"type": "function", "strict": False, **found, "defer_loading": True}
        for found in definitions_in(text_of(content))
    ]
    return {"type": OUTPUT, "execution": "client", "call_id": call_id, "status": "completed", "tools": tools}


def loaded(items: Sequence[Item]) -> set[str]:
    """Return the names of the functions that the searches in these items have found. Their calls need a namespace."""
    outputs = (item for item in items if item.get("type") == OUTPUT)
    return {tool["name"] for item in outputs for tool in item.get("tools") or () if is_object(tool) and "name" in tool}

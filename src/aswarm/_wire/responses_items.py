"""Output items of the Responses API, and the message of Chat Completions that they stand for.

Decides what an item contributes to a message, and whether items may be sent back as they came. Sans-IO. A message that
came over the Responses API keeps its items under `OUTPUT_ITEMS`: reasoning can only be sent back as an item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._json import is_array, is_object
from aswarm._messages import Message, text_of

# The key of an assistant message that holds its output items, in order, as they came.
OUTPUT_ITEMS = "responses_output"
# The types of items that are calls of a function, and the key of their payload.
CALL_TYPES = {"function_call": "arguments", "custom_tool_call": "input"}
_REASONING_PARTS = frozenset({"summary_text", "reasoning_text"})
NEXT_PART = "\n\n"  # between two messages of one response, and between two parts of its reasoning
# What a caller could put into a history in place of the model: words of others, and answers to what the model asked.
_NOT_OF_A_MODEL = frozenset(
    {"additional_tools", "configuration_update", "item_reference", "mcp_approval_response"}
    | {"computer_call_output", "custom_tool_call_output", "function_call_output", "local_shell_call_output"}
)
# Calls of hosted tools that the provider leaves to the client, and what to do instead.
_WITHOUT = "remove its tool from model_settings; a function of the agent can take its place"
_LEFT_TO_CLIENT = {
    "apply_patch_call": _WITHOUT,
    "computer_call": _WITHOUT,
    "local_shell_call": _WITHOUT,
    "mcp_approval_request": 'set "require_approval": "never" on its tool in model_settings',
    "shell_call": "give its tool in model_settings a container of the provider as its environment",
    "tool_search_call": 'set "execution": "server" on its tool in model_settings',
}

Item = Mapping[str, Any]


def message_of(items: Sequence[Item]) -> Message:
    """The message that the items of one response stand for. It has `OUTPUT_ITEMS`, and no key without a value."""
    text, refusal, calls = _content_of(items)
    reasoning = NEXT_PART.join(
        filter(None, [reasoning_text(item) for item in items if item.get("type") == "reasoning"])
    )
    fields = {
        "content": text,
        "refusal": refusal,
        "reasoning_content": reasoning,
        "tool_calls": calls,
        OUTPUT_ITEMS: list(items),
    }
    return {"role": "assistant", **{key: value for key, value in fields.items() if value}}


def check_hosted_calls(items: Sequence[Item]) -> None:
    """Raise ConfigurationError for a call that waits for the client: the next request would be refused without its result."""
    for item in items:
        kind = item.get("type")
        if kind in _LEFT_TO_CLIENT and not _is_run_by_provider(item):
            raise ConfigurationError(
                f"the model made a {kind!r}, which waits for a result from this program, and aswarm runs only functions of "
                f"agents; {_LEFT_TO_CLIENT[kind]}"
            )


def _is_run_by_provider(item: Item) -> bool:
    environment: Any = item.get("environment")
    return item.get("execution") == "server" or (
        is_object(environment) and environment.get("type") == "container_reference"
    )


def call_of(item: Item) -> Message:
    """The tool call that an item stands for. The item must be of one of the `CALL_TYPES`."""
    payload = CALL_TYPES[item["type"]]
    kind = "function" if payload == "arguments" else "custom"
    return {
        "id": item.get("call_id") or item.get("id"),
        "type": kind,
        kind: {"name": item.get("name") or "", payload: item.get(payload) or ""},
    }


def _content_of(items: Sequence[Item]) -> tuple[str, str, list[Message]]:
    """Text, refusal and calls."""
    texts: list[str] = []
    refusals: list[str] = []
    calls: list[Message] = []
    for item in items:
        kind = item.get("type")
        if kind == "message":
            parts = objects_in(item.get("content"))
            texts.append("".join([part.get("text") or "" for part in parts if part.get("type") == "output_text"]))
            refusals += [part.get("refusal") or "" for part in parts if part.get("type") == "refusal"]
        elif kind in CALL_TYPES:
            calls.append(call_of(item))
    return NEXT_PART.join(filter(None, texts)), "".join(refusals), calls


def reasoning_text(item: Item) -> str:
    """The reasoning that an item shows: its summary, and the reasoning itself where a server shows that."""
    parts = [*objects_in(item.get("summary")), *objects_in(item.get("content"))]
    return NEXT_PART.join([part.get("text") or "" for part in parts if part.get("type") in _REASONING_PARTS])


def objects_in(parts: Any) -> list[Item]:
    """The parts that are objects; none if this is no list."""
    return [part for part in parts if is_object(part)] if is_array(parts) else []


def items_to_replay(message: Message, readable: Sequence[str]) -> Sequence[Item] | None:
    """The items of the message, if the API takes them back; else None, and the message is sent in its plain form.

    They must still say what the message says: a caller may have edited or trimmed it. They must be of a model: a history
    may come from a browser. The API refuses reasoning without an item after it, items whose reasoning was removed, and
    reasoning that has none of the `readable` keys: it stored nothing of it.
    """
    items = message.get(OUTPUT_ITEMS)
    if not (is_array(items) and items and all(map(_is_of_model, items))):
        return None
    reasoning = [item for item in items if item["type"] == "reasoning"]
    if reasoning and (items[-1] is reasoning[-1] or not all(any(map(item.get, readable)) for item in reasoning)):
        return None
    if message.get("reasoning_content") and not reasoning:
        return None
    return items if _matches(message, items) else None


def _is_of_model(item: Any) -> bool:
    if not is_object(item) or item.get("type") in _NOT_OF_A_MODEL:
        return False
    return isinstance(item.get("type"), str) and item.get("role") in (None, "assistant")


def _matches(message: Message, items: Sequence[Item]) -> bool:
    text, refusal, calls = _content_of(items)
    if text_of(message.get("content")) != text or (message.get("refusal") or "") != refusal:
        return False
    known: list[Message] = message.get("tool_calls") or []
    return len(known) == len(calls) and all(map(_is_same_call, known, calls))


def _is_same_call(call: Message, other: Message) -> bool:
    return call.get("id") == other["id"] and _named(call) == _named(other)


def _named(call: Message) -> tuple[str, str]:
    named: Mapping[str, Any] = call.get("function") or call.get("custom") or {}
    return named.get("name") or "", named.get("arguments") or named.get("input") or ""

"""Body of a request for the Responses API, from a body of Chat Completions.

The module converts settings, tools and messages, and never sends them. Each request contains the whole history; after a compaction
by the server, only the later part. By default `store` is false. The history of a run only grows, so a request reuses the input
items of the previous request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

from aswarm._values.errors import ConfigurationError
from aswarm._values.found_tools import SEARCH_TOOLS
from aswarm._values.json import is_array, is_object, shown
from aswarm._values.messages import Message
from aswarm._values.wire_messages import OUTPUT_ITEMS

from .responses_items import (
    OUTPUT,
    Item,
    from_compaction,
    has_search,
    items_to_replay,
    loaded,
    objects_in,
    outlives_compaction,
    search_call,
    search_output,
    with_search,
    written_text,
)

if TYPE_CHECKING:
    from .anthropic_messages import SentTurns

# The limit of output tokens has two names in Chat Completions, and another name in the Responses API.
_RENAMED = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# Settings that the Responses API does not have, with their defaults. A default has no effect, so it is not an error.
CHAT_ONLY: Mapping[str, object] = {
    "audio": None,
    "frequency_penalty": 0,
    "function_call": None,
    "functions": None,
    "logit_bias": {},
    "modalities": ["text"],
    "n": 1,
    "prediction": None,
    "presence_penalty": 0,
    "seed": None,
    "stop": None,
    "web_search_options": None,
}
# Settings for a history that the provider stores. They raise ConfigurationError, because a run sends the whole history.
_STATEFUL = frozenset({"background", "conversation", "previous_response_id"})
_MAPPED = frozenset(
    {"include", "logprobs", "messages", "reasoning", "reasoning_effort", "response_format", "stream_options"}
    | {"text", "tool_choice", "tools", "verbosity"}
)
_NOT_SENT = _MAPPED | CHAT_ONLY.keys()
_CHECKED = _STATEFUL | CHAT_ONLY.keys()
_ENCRYPTED_REASONING = "reasoning.encrypted_content"
# Models without reasoning, by the start of their names. They reject a request for encrypted reasoning. An Azure deployment of
# such a model may have any name. After a rejected request, the error text advises an empty `include`.
_WITHOUT_REASONING = ("gpt-3", "gpt-4", "chatgpt-4o", "gpt-5-chat", "gpt-5.1-chat")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_LONGEST_CALL_ID = 64  # the API rejects longer ids
_SHOWN = 80
_ROLES = frozenset({"user", "assistant", "system", "developer"})
# Parts of an answer that may be omitted without an error: empty text parts, and the reasoning of another provider.
_UNSENT_PARTS = frozenset({"text", "output_text", "refusal", "reasoning", "thinking", "redacted_thinking"})
_OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "tool_search_call": OUTPUT,
}
_USE_CHAT = 'AsyncSwarm(api="chat")'


def responses_body(
    body: Mapping[str, Any], known: KnownHistory | None = None, *, may_search: bool = False
) -> dict[str, Any]:
    """Return the body for `/responses`, made from `body`, which is for `/chat/completions`. `body` does not change.

    `known`: the known history of the run, which stores the input items for the next request. `may_search`: whether the body may
    have OpenAI's tool search, see `responses_items`. Raises ConfigurationError for a setting or a part of a message that the
    Responses API does not have.
    """
    for key in body:
        if key in _CHECKED:
            _check(key, body[key])
    check_limits(body)
    settings = {_RENAMED.get(key, key): value for key, value in body.items() if key not in _NOT_SENT}
    text = _joined(body.get("text"), format=_text_format(body.get("response_format")), verbosity=body.get("verbosity"))
    instructions, messages = _split_instructions(body["messages"], text.get("format"))
    include, options = _include(body), _joined(body.get("stream_options"))
    readable, searches = _readable(body, include), may_search and has_search(body)
    earlier = None if known is None else known.input
    is_start = earlier is not None and earlier.is_start_of(messages, readable, searches=searches)
    start = earlier if earlier and is_start else InputHistory(readable, searches=searches)
    history = start.extended(messages)
    if known is not None:
        known.input = history
    tools = [_tool(tool) for tool in body.get("tools") or ()]
    mapped = {
        "instructions": instructions,
        "input": [*history.items],
        "tools": [*with_search(tools)] if searches else tools,
        "tool_choice": _flat(body.get("tool_choice")),
        "reasoning": _joined(body.get("reasoning"), effort=body.get("reasoning_effort")),
        "text": text,
        # A stream of the Responses API always ends with the usage.
        "stream_options": {key: value for key, value in options.items() if key != "include_usage"},
        "include": include,
    }
    filled = {key: value for key, value in mapped.items() if value or key == "input"}
    return {"store": False, **settings, **filled}


def check_limits(body: Mapping[str, Any]) -> None:
    """Raise ConfigurationError if the limit of output tokens is set twice, under two names."""
    if len(limits := {*LIMITS} & body.keys()) > 1:
        raise ConfigurationError(
            f"model_settings has {' and '.join(map(repr, sorted(limits)))}, which are one setting; remove all but one"
        )


def _check(key: str, value: object) -> None:
    if key in _STATEFUL:
        raise ConfigurationError(
            f"model_settings has {key!r}, but aswarm sends the whole history with each request and stores nothing at "
            "the provider; remove the setting and pass the messages of the conversation"
        )
    if value != CHAT_ONLY[key]:
        raise ConfigurationError(
            f"model_settings has {key!r}, which the Responses API does not have; remove the setting, or use "
            'AsyncSwarm(api="chat")'
        )


def _joined(settings: Any, **chat: Any) -> dict[str, Any]:
    # `settings`: the user's value in the form of the Responses API; it overrides `chat`.
    base: Mapping[str, Any] = settings if is_object(settings) else {}
    return {**{key: value for key, value in chat.items() if value is not None}, **base}


def _text_format(response_format: Any) -> Any:
    schema = response_format.get("json_schema") if is_object(response_format) else None
    return {"type": "json_schema", **schema} if is_object(schema) else response_format


def _include(body: Mapping[str, Any]) -> list[Any]:
    """Return the user's `include`, and add encrypted reasoning for the next request. An empty `include` prevents this."""
    requested = body.get("include")
    include: list[Any] = list(requested) if is_array(requested) else []
    if (include or not is_array(requested)) and _ENCRYPTED_REASONING not in include and _reasons(body):
        include.append(_ENCRYPTED_REASONING)
    return [*include, "message.output_text.logprobs"] if body.get("logprobs") else include


def _readable(body: Mapping[str, Any], include: Sequence[Any]) -> Sequence[str]:
    """Return the keys from which the model can read earlier reasoning. Reasoning without any of these keys is not sent back."""
    if not _reasons(body):
        return ()
    return ("content", "encrypted_content") if _ENCRYPTED_REASONING in include else ("content",)


def _reasons(body: Mapping[str, Any]) -> bool:
    return not str(body.get("model")).removeprefix("ft:").startswith(_WITHOUT_REASONING)


# --- tools ------------------------------------------------------------------------------------------------------------


def _flat(tool: Any) -> Any:
    """Return a tool, or a tool choice, in the form of the Responses API: without the inner object of Chat Completions."""
    if not is_object(tool):
        return tool
    kind = tool.get("type")
    inner: Any = tool.get(kind) if isinstance(kind, str) else None
    if not is_object(inner):
        return dict(tool)
    flat = {"type": kind, **inner}
    if kind == "allowed_tools":
        return {**flat, "tools": [_flat(allowed) for allowed in inner.get("tools") or ()]}
    return flat


def _tool(tool: Any) -> Any:
    function = tool.get("function") if is_object(tool) else None
    if is_object(function):
        # In the Responses API, a missing `strict` means true.
        strict = bool(function.get("strict"))
        return {"type": "function", "parameters": _NO_PARAMETERS, **function, "strict": strict}
    flat = _flat(tool)
    if is_object(flat) and flat.get("type") == "tool_search" and flat.get("execution") == "client":
        raise ConfigurationError(
            "model_settings has a tool_search that the client executes; remove it, and mark the functions with @tool(defer=True)"
        )
    if is_object(flat) and is_object(flat.get("format")):
        return {**flat, "format": _flat(flat["format"])}
    return flat


# --- messages ---------------------------------------------------------------------------------------------------------


def _split_instructions(messages: Sequence[Message], text_format: Any) -> tuple[str | None, Sequence[Message]]:
    first = messages[0] if messages else {}
    is_text = first.get("role") == "system" and isinstance(first.get("content"), str) and len(first) == 2  # noqa: PLR2004
    # The API rejects an empty input. For "json_object", the word JSON must be in the input, not only in the instructions.
    if not is_text or len(messages) == 1 or (is_object(text_format) and text_format.get("type") == "json_object"):
        return None, messages
    return first["content"], messages[1:]


@dataclass(frozen=True, slots=True)
class InputHistory:
    """Messages and the input items that were made from them. Immutable. Messages are compared by identity.

    `readable`: the keys from which the model reads earlier reasoning.
    `searches`: whether the calls of `search_tools` are items of OpenAI's tool search.
    `outputs`: fields for the items of tool messages, by call id. It has only the calls of the last message with calls.
    """

    readable: Sequence[str] = ()
    searches: bool = False
    messages: Sequence[Message] = ()
    items: Sequence[Item] = ()
    outputs: Mapping[str, Item] = field(default_factory=dict[str, Item])

    def extended(self, messages: Sequence[Message]) -> InputHistory:
        """Return the history of these messages, which start with the messages of this history.

        Raises ConfigurationError for a message or a part that the API does not support.
        """
        items, outputs = list(self.items), self.outputs
        for message in messages[len(self.messages) :]:
            role, content = message["role"], message.get("content")
            if len(message) == 2 and content and isinstance(content, str) and role in _ROLES:  # noqa: PLR2004
                # A fast path: most messages of a long history have only a text.
                items.append(_assistant_item(content) if role == "assistant" else message)
            elif role == "assistant":
                replayed = items_to_replay(message, self.readable, searches=self.searches)
                if replayed is not None and (compacted := from_compaction(replayed)) is not None:
                    # The server has the earlier items in encrypted form. They stay in the history, for another provider.
                    items, replayed = [*filter(outlives_compaction, items)], compacted
                if replayed is None:
                    replayed = [*_plain_items(message, self.searches, items)]
                items += replayed
                if message.get("tool_calls"):
                    outputs = _outputs_of(replayed)
            else:
                items.append(_item_of(message, outputs))
        return InputHistory(self.readable, self.searches, messages, items, outputs)

    def is_start_of(self, messages: Sequence[Message], readable: Sequence[str], *, searches: bool) -> bool:
        """Return whether these messages start with the same objects as this history, for the same `readable` and `searches`."""
        is_equal = self.readable == readable and self.searches == searches and len(self.messages) <= len(messages)
        return is_equal and all(map(is_, self.messages, messages))


class SentItems(NamedTuple):
    """Messages or input items of a request, and the position of their JSON in its content. Compared by identity."""

    items: Sequence[Any]
    content: bytes
    start: int
    end: int


@dataclass(eq=False, slots=True)
class KnownHistory:
    """Facts about the messages of a run. All requests of the run share them: messages are only added and never change.

    `is_chat`: whether all messages have the form of Chat Completions.
    `input`: the input items of the last request to the Responses API.
    `turns`: the messages of the last request to Claude's Messages API, up to the last answer.
    `sent`: the messages or items of the last request, with their JSON.
    """

    is_chat: bool
    input: InputHistory | None = None
    sent: SentItems | None = None
    turns: SentTurns | None = None


def _item_of(message: Message, outputs: Mapping[str, Item]) -> Item:
    role = message["role"]
    if role == "tool":
        call_id = _call_id(message["tool_call_id"])
        own = outputs.get(call_id, {})
        if own.get("type") == OUTPUT:
            return search_output(own["call_id"], message["content"])
        item = {"type": "function_call_output", "call_id": call_id, "output": _content(message["content"])}
        return {**item, **own}
    if role == "function":
        raise ConfigurationError(
            "a message has the role 'function', which the Responses API does not have; use tool messages, or "
            f"{_USE_CHAT}"
        )
    return {"role": role, "content": _content(message["content"])}


def _outputs_of(items: Sequence[Item]) -> dict[str, Item]:
    """Return the fields for the answers to the calls in `items`, by call id: the type, the id and the `caller` of the call."""
    outputs: dict[str, Item] = {}
    for item in items:
        if item["type"] in _OUTPUTS:
            call_id = item.get("call_id") or item["id"]
            caller = {"caller": item["caller"]} if item.get("caller") else {}
            outputs[_call_id(call_id)] = {"type": _OUTPUTS[item["type"]], "call_id": call_id, **caller}
    return outputs


def _assistant_item(text: str) -> Item:
    # llama.cpp recognises the item only by `type`, and rejects a plain text as its content.
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def _plain_items(message: Message, searches: bool, before: Sequence[Item]) -> Iterator[Item]:
    """Yield new items for an assistant message that has no items (from another API), or that the caller has edited.

    `searches`: see `InputHistory`. `before`: the items before the message.
    """
    text = written_text(message)
    calls: list[Message] = message.get("tool_calls") or []
    if not (text or calls) and (lost := _lost(message)):
        raise ConfigurationError(
            f"an assistant message has only {lost[0]!r}, which the Responses API does not have; leave the message out, or use "
            f"{_USE_CHAT}"
        )
    if text:
        yield _assistant_item(text)
    # The API rejects a call without the namespace of its function.
    in_namespaces = [item for item in objects_in(message.get(OUTPUT_ITEMS)) if item.get("namespace")] if calls else ()
    namespaces = {item.get("call_id"): {"namespace": item["namespace"]} for item in in_namespaces}
    known = loaded(before) if searches and calls else ()
    for call in calls:
        item = _call_item(call)
        if searches and item["name"] == SEARCH_TOOLS and item["type"] == "function_call":
            item = search_call(item["call_id"], item["arguments"])
        elif item["name"] in known:  # its search was a call of `search_tools`, and now it is an item of the API
            item = {**item, "namespace": item["name"]}
        yield {**item, **namespaces.get(call["id"], {})}


def _lost(message: Message) -> list[str]:
    """Return the keys and parts of an assistant message that cannot become an item."""
    kinds = [str(part.get("type")) for part in objects_in(message.get("content"))]
    return [
        *(key for key in ("audio", "function_call") if message.get(key)),
        *(kind for kind in kinds if kind not in _UNSENT_PARTS),
    ]


def _call_item(call: Message) -> Item:
    kind, payload = ("custom_tool_call", "input") if "custom" in call else ("function_call", "arguments")
    named = call.get("custom") or call.get("function")
    if not is_object(named):
        raise ConfigurationError(
            f"a message has a tool call of a type that the Responses API does not have: {shown(call, _SHOWN)}; leave the "
            f"call out, or use {_USE_CHAT}"
        )
    fields = {key: named.get(key) or "" for key in ("name", payload)}
    return {"type": kind, "call_id": _call_id(call["id"]), **fields}


def _call_id(call_id: str) -> str:
    # Ids of other providers may be longer. The call and its answer get the same shortened id.
    return call_id[-_LONGEST_CALL_ID:]


# --- parts of a message -----------------------------------------------------------------------------------------------


def _content(content: Any) -> Any:
    return [_part(part) for part in content] if is_array(content) else content


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = str(part.get("type"))
    if kind.startswith("input_") and kind != "input_audio":
        return part
    if kind not in _PARTS:
        raise ConfigurationError(
            f"a message has a content part that the Responses API does not have: {shown(part, _SHOWN)}; it has text, "
            f"image_url and file. Remove the part, or use {_USE_CHAT}"
        )
    make, types = _PARTS[kind]
    value = part.get(kind)
    if not isinstance(value, types):
        raise ConfigurationError(
            f"a message has a content part of the type {kind!r} whose {kind!r} is missing or wrong: {shown(part, _SHOWN)}; "
            f"expected {' or '.join('an object' if expected_type is Mapping else 'a str' for expected_type in types)}"
        )
    rest = {key: value for key, value in part.items() if key not in ("type", kind)}
    return {**make(value), **rest}


def _image(image: Any) -> dict[str, Any]:
    image = image if is_object(image) else {"url": image}
    return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}


def _file(file: Mapping[str, Any]) -> dict[str, Any]:
    data = file.get("file_data")
    is_url = isinstance(data, str) and data.startswith(("https:", "http:"))
    return {"type": "input_file", **({"file_url": data} if is_url else file)}


_PARTS: Mapping[str, tuple[Callable[[Any], dict[str, Any]], tuple[type, ...]]] = {
    "text": (lambda text: {"type": "input_text", "text": text}, (str,)),
    "image_url": (_image, (str, Mapping)),
    "file": (_file, (Mapping,)),
}

"""A request for a completion, in the form of the Responses API.

Decides what settings, tools and messages of Chat Completions become there. Never sends it. The
conversation is never stored: `store` is false, and each request has the whole history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._json import is_array, is_object, shown
from aswarm._messages import Message, text_of

from .responses_items import items_to_replay

_RENAMED = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
# What the Responses API does not have, and the values that ask for nothing.
_CHAT_ONLY: Mapping[str, object] = {
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
# The run has the history, and sends it whole.
_STATEFUL = frozenset({"background", "conversation", "previous_response_id"})
_MAPPED = frozenset(
    {"include", "logprobs", "messages", "reasoning", "reasoning_effort", "response_format", "stream_options"}
    | {"text", "tool_choice", "tools", "verbosity"}
)
_ENCRYPTED_REASONING = "reasoning.encrypted_content"
# Models that do not reason. They refuse a request that asks for their encrypted reasoning.
_WITHOUT_REASONING = ("gpt-3", "gpt-4", "chatgpt-4o", "gpt-5-chat", "gpt-5.1-chat")
_LONGEST_CALL_ID = 64  # the API refuses a longer one
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_SHOWN = 80


def responses_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body for `/responses` that asks for what `body` asks of `/chat/completions`. Nothing of `body` is changed.

    Raises ConfigurationError that names a setting or a part of a message that the Responses API does not have.
    """
    settings = {_RENAMED.get(key, key): value for key, value in body.items() if _is_same(key, value)}
    instructions, messages = _split_instructions(body["messages"])
    mapped = {
        "instructions": instructions,
        "input": list(_input_items(messages, reasons=_reasons(body))),
        "tools": [_tool(tool) for tool in body.get("tools") or ()],
        "tool_choice": _flat(body.get("tool_choice")),
        "reasoning": _joined(body.get("reasoning"), effort=body.get("reasoning_effort")),
        "text": _joined(
            body.get("text"), format=_text_format(body.get("response_format")), verbosity=body.get("verbosity")
        ),
        "stream_options": _without_usage(body.get("stream_options")),
        "include": _include(body),
    }
    said = {key: value for key, value in mapped.items() if value or key == "input"}
    return {"store": False, **settings, **said}


def _is_same(key: str, value: object) -> bool:
    """Whether the setting is sent as it is. Raises ConfigurationError for one that cannot be sent at all."""
    if key in _MAPPED:
        return False
    if key in _STATEFUL:
        raise ConfigurationError(
            f"model_settings has {key!r}, but aswarm sends the whole history with each request and stores nothing at "
            "the provider; remove the setting, and pass the messages of the conversation"
        )
    if key in _CHAT_ONLY:
        if value != _CHAT_ONLY[key]:
            raise ConfigurationError(
                f"model_settings has {key!r}, which the Responses API does not have; remove the setting, or use "
                'AsyncSwarm(api="chat")'
            )
        return False
    return True


def _joined(own: Any, **said: Any) -> dict[str, Any]:
    """A setting that is an object: what the user set in the form of the Responses API, and what has a chat setting."""
    base: Mapping[str, Any] = own if is_object(own) else {}
    return {**{key: value for key, value in said.items() if value is not None}, **base}


def _text_format(response_format: Any) -> Any:
    schema = response_format.get("json_schema") if is_object(response_format) else None
    return {"type": "json_schema", **schema} if is_object(schema) else response_format


def _without_usage(options: Any) -> dict[str, Any]:
    # A stream of the Responses API always ends with the usage.
    return {key: value for key, value in options.items() if key != "include_usage"} if is_object(options) else {}


def _include(body: Mapping[str, Any]) -> list[Any]:
    asked = body.get("include")
    include: list[Any] = list(asked) if is_array(asked) else [_ENCRYPTED_REASONING] if _reasons(body) else []
    return [*include, "message.output_text.logprobs"] if body.get("logprobs") else include


def _reasons(body: Mapping[str, Any]) -> bool:
    return not str(body.get("model")).removeprefix("ft:").startswith(_WITHOUT_REASONING)


# --- tools ------------------------------------------------------------------------------------------------------------


def _flat(tool: Any) -> Any:
    """A tool, or a choice of one, without the object that Chat Completions puts around its fields. Others stay."""
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
    flat = _flat(tool)
    if is_object(tool) and is_object(tool.get("function")):
        # If `strict` is missing, the Responses API takes it for true.
        return {"parameters": _NO_PARAMETERS, **flat, "strict": bool(flat.get("strict"))}
    if is_object(flat) and is_object(flat.get("format")):
        return {**flat, "format": _flat(flat["format"])}
    return flat


# --- messages ---------------------------------------------------------------------------------------------------------


def _split_instructions(messages: Sequence[Message]) -> tuple[str | None, Sequence[Message]]:
    first = messages[0] if messages else {}
    if first.get("role") == "system" and isinstance(first.get("content"), str) and len(first) == 2:  # noqa: PLR2004
        return first["content"], messages[1:]
    return None, messages


def _input_items(messages: Sequence[Message], *, reasons: bool) -> Iterator[Mapping[str, Any]]:
    custom: frozenset[str] = frozenset()  # ids of the calls of the last assistant message that are no functions
    for message in messages:
        role, content = message["role"], message.get("content")
        if role == "assistant":
            calls: list[Message] = message.get("tool_calls") or []
            custom = frozenset(call["id"] for call in calls if "custom" in call)
            yield from items_to_replay(message, reasons=reasons) or _plain_items(message)
        elif role == "tool":
            yield _output(message, is_custom=message["tool_call_id"] in custom)
        elif role == "function":
            raise ConfigurationError(
                "messages have one with the role 'function', which the Responses API does not have; use tool messages, "
                'or AsyncSwarm(api="chat")'
            )
        else:
            yield message if len(message) == 2 and isinstance(content, str) else _input_message(message)  # noqa: PLR2004


def _input_message(message: Message) -> Message:
    return {"role": message["role"], "content": _content(message["content"])}


def _plain_items(message: Message) -> Iterator[Mapping[str, Any]]:
    text = text_of(message.get("content")) or message.get("refusal")
    if text:
        yield {"role": "assistant", "content": text}
    calls: list[Message] = message.get("tool_calls") or []
    for call in calls:
        named = call.get("custom") or call["function"]
        if "custom" in call:
            yield {"type": "custom_tool_call", "call_id": _call_id(call["id"]), **_only(named, "name", "input")}
        else:
            yield {"type": "function_call", "call_id": _call_id(call["id"]), **_only(named, "name", "arguments")}


def _only(named: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: named.get(key) or "" for key in keys}


def _output(message: Message, *, is_custom: bool) -> Mapping[str, Any]:
    kind = "custom_tool_call_output" if is_custom else "function_call_output"
    return {"type": kind, "call_id": _call_id(message["tool_call_id"]), "output": _content(message["content"])}


def _call_id(call_id: str) -> str:
    # Ids of other providers may be longer. Both sides of a pair are cut in the same way.
    return call_id[-_LONGEST_CALL_ID:]


def _content(content: Any) -> Any:
    return [_part(part) for part in content] if is_array(content) else content


def _part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = str(part.get("type"))
    if kind.startswith("input_") and kind != "input_audio":
        return part
    if kind not in _PARTS:
        raise ConfigurationError(
            f"messages have a content part that the Responses API does not have: {shown(part, _SHOWN)}; it has text, "
            'image_url and file. Remove the part, or use AsyncSwarm(api="chat")'
        )
    rest = {key: value for key, value in part.items() if key not in ("type", kind)}
    return {**_PARTS[kind](part[kind]), **rest}


def _image(image: Any) -> dict[str, Any]:
    image = image if is_object(image) else {"url": image}
    return {"type": "input_image", "image_url": image.get("url"), "detail": image.get("detail") or "auto"}


def _file(file: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "input_file", **file}


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


_PARTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {"text": _text, "image_url": _image, "file": _file}

"""A request for a completion, in the form of the Responses API.

Decides what settings, tools and messages of Chat Completions become there. Never sends it. Each request has the whole
history, and `store` is false unless the user sets it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._json import is_array, is_object
from aswarm._messages import Message

from .responses_input import KnownHistory, input_history

# Names of one setting: OpenAI has renamed it.
_RENAMED = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}
_LIMITS = {*_RENAMED, "max_output_tokens"}
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
_NOT_SENT = _MAPPED | _CHAT_ONLY.keys()
_CHECKED = _STATEFUL | _CHAT_ONLY.keys()
_ENCRYPTED_REASONING = "reasoning.encrypted_content"
# Models that do not reason. They refuse a request that asks for their encrypted reasoning. A deployment may have any name:
# the error of such a request says that `include` can be empty.
_WITHOUT_REASONING = ("gpt-3", "gpt-4", "chatgpt-4o", "gpt-5-chat", "gpt-5.1-chat")
_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def responses_body(body: Mapping[str, Any], known: KnownHistory | None = None) -> dict[str, Any]:
    """The body for `/responses` that asks for what `body` asks of `/chat/completions`. Nothing of `body` is changed.

    `known`: what the run knows of the messages; what they became is added to it. Raises ConfigurationError that names a
    setting or a part of a message that the Responses API does not have.
    """
    for key in body:
        if key in _CHECKED:
            _check(key, body[key])
    if len(limits := _LIMITS & body.keys()) > 1:
        raise ConfigurationError(
            f"model_settings has {' and '.join(map(repr, sorted(limits)))}, which are one setting; remove all but one"
        )
    settings = {_RENAMED.get(key, key): value for key, value in body.items() if key not in _NOT_SENT}
    text = _joined(body.get("text"), format=_text_format(body.get("response_format")), verbosity=body.get("verbosity"))
    instructions, messages = _split_instructions(body["messages"], text.get("format"))
    include = _include(body)
    history = input_history(messages, _readable(body, include), None if known is None else known.input)
    if known is not None:
        known.input = history
    mapped = {
        "instructions": instructions,
        "input": [*history.items],
        "tools": [_tool(tool) for tool in body.get("tools") or ()],
        "tool_choice": _flat(body.get("tool_choice")),
        "reasoning": _joined(body.get("reasoning"), effort=body.get("reasoning_effort")),
        "text": text,
        "stream_options": _without_usage(body.get("stream_options")),
        "include": include,
    }
    asked = {key: value for key, value in mapped.items() if value or key == "input"}
    return {"store": False, **settings, **asked}


def _check(key: str, value: object) -> None:
    """Raise ConfigurationError for a setting that cannot be sent."""
    if key in _STATEFUL:
        raise ConfigurationError(
            f"model_settings has {key!r}, but aswarm sends the whole history with each request and stores nothing at "
            "the provider; remove the setting, and pass the messages of the conversation"
        )
    if value != _CHAT_ONLY[key]:
        raise ConfigurationError(
            f"model_settings has {key!r}, which the Responses API does not have; remove the setting, or use "
            'AsyncSwarm(api="chat")'
        )


def _joined(own: Any, **chat: Any) -> dict[str, Any]:
    """A setting that is an object: what the user set in the form of the Responses API, and what has a chat setting."""
    base: Mapping[str, Any] = own if is_object(own) else {}
    return {**{key: value for key, value in chat.items() if value is not None}, **base}


def _text_format(response_format: Any) -> Any:
    schema = response_format.get("json_schema") if is_object(response_format) else None
    return {"type": "json_schema", **schema} if is_object(schema) else response_format


def _without_usage(options: Any) -> dict[str, Any]:
    # A stream of the Responses API always ends with the usage.
    return {key: value for key, value in options.items() if key != "include_usage"} if is_object(options) else {}


def _include(body: Mapping[str, Any]) -> list[Any]:
    """What the user asks for, and the reasoning that the next request needs; an empty list asks for no reasoning."""
    asked = body.get("include")
    include: list[Any] = list(asked) if is_array(asked) else []
    if (include or not is_array(asked)) and _ENCRYPTED_REASONING not in include and _reasons(body):
        include.append(_ENCRYPTED_REASONING)
    return [*include, "message.output_text.logprobs"] if body.get("logprobs") else include


def _readable(body: Mapping[str, Any], include: Sequence[Any]) -> Sequence[str]:
    """The keys by which the model can read earlier reasoning: reasoning without one of them is not sent back."""
    if not _reasons(body):
        return ()
    return ("content", "encrypted_content") if _ENCRYPTED_REASONING in include else ("content",)


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
    function = tool.get("function") if is_object(tool) else None
    if is_object(function):
        # If `strict` is missing, the Responses API takes it for true.
        strict = bool(function.get("strict"))
        return {"type": "function", "parameters": _NO_PARAMETERS, **function, "strict": strict}
    flat = _flat(tool)
    if is_object(flat) and is_object(flat.get("format")):
        return {**flat, "format": _flat(flat["format"])}
    return flat


# --- messages ---------------------------------------------------------------------------------------------------------


def _split_instructions(messages: Sequence[Message], text_format: Any) -> tuple[str | None, Sequence[Message]]:
    first = messages[0] if messages else {}
    is_text = first.get("role") == "system" and isinstance(first.get("content"), str) and len(first) == 2  # noqa: PLR2004
    # The API refuses an empty input. For a JSON object it wants the word JSON in the input, not in the instructions.
    if not is_text or len(messages) == 1 or (is_object(text_format) and text_format.get("type") == "json_object"):
        return None, messages
    return first["content"], messages[1:]

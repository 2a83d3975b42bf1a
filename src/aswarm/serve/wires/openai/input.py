"""Reader of the requests of Chat Completions.

This API has no conversations on the server, so a client sends its whole history. This module reads the texts of the user and of
the assistant, and the calls of the client's own tools with their results. The caller decides whether to use this history.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aswarm._values.json import is_array, is_object
from aswarm._values.messages import Message, call_arguments, text_of
from aswarm.runs._requests import (
    CallAnswer,
    ClientTool,
    InvalidRequest,
    NewMessage,
    a_flag,
    a_list,
    a_text,
    an_object,
    client_tool,
    last_said,
    user_content,
)

_IGNORED = ("tools", "tool_choice", "functions", "function_call", "temperature", "max_tokens", "stop", "seed")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request of a client.

    `history`: the texts of the user and of the assistant, with the calls of the client's tools; used for a request without a
    conversation on the server. `messages`: the user's messages since the last answer; used for a request with a conversation.
    `answers`: the results of the client's tools. `system`: the texts of the roles system and developer. `ignored`: the names of
    settings that have no effect.
    """

    model: str
    history: Sequence[Message] = ()
    messages: Sequence[NewMessage] = ()
    answers: Sequence[CallAnswer] = ()
    system: Sequence[str] = ()
    tools: Sequence[ClientTool] = ()
    stream: bool = False
    include_usage: bool = False
    ignored: Sequence[str] = ()


def chat_request(body: object) -> ChatRequest:
    """Return the request in a body. Raises InvalidRequest.

    `ignored` of the request lists the settings that the agents decide. A setting raises InvalidRequest if the client would rely on
    its effect (`n`, `logprobs`, `response_format`).
    """
    data = an_object(body, "body")
    _refuse_settings(data)
    sent = a_list(data.get("messages"), "messages")
    messages = [an_object(each, f"messages[{at}]") for at, each in enumerate(sent)]
    if not any(message.get("role") == "user" and _content(message) for message in messages):
        raise InvalidRequest(
            "messages must have a message with the role user and a content",
            code="invalid_request",
            status_code=400,
            param="messages",
        )
    tools = list(_tools(a_list(data.get("tools"), "tools")))
    options = data.get("stream_options")
    new = [NewMessage(_content(message)) for message in last_said(messages)]
    return ChatRequest(
        model=a_text(data.get("model"), "model"),
        history=_history(messages, {tool.name for tool in tools}),
        messages=[message for message in new if message.content],
        answers=list(_answers(messages)),
        system=[text_of(each.get("content")) for each in messages if each.get("role") in ("system", "developer")],
        tools=tools,
        stream=a_flag(data.get("stream"), "stream"),
        include_usage=is_object(options) and options.get("include_usage") is True,
        ignored=[key for key in _IGNORED if data.get(key) is not None],
    )


def unknown_model(name: str) -> InvalidRequest:
    """Return the error for a model name that is not the name of an agent."""
    return InvalidRequest(f"The model {name!r} does not exist.", code="model_not_found", status_code=404, param="model")


def _refuse_settings(data: Mapping[str, Any]) -> None:
    response_format = data.get("response_format")
    is_text = response_format is None or (is_object(response_format) and response_format.get("type") == "text")
    refused = {
        "n": data.get("n") not in (None, 1),
        "logprobs": bool(data.get("logprobs")),
        "response_format": not is_text,
    }
    for param, is_refused in refused.items():
        if is_refused:
            raise InvalidRequest(
                f"{param} is not supported by this server", code="unsupported", status_code=400, param=param
            )


def _tools(tools: list[Any]) -> Iterator[ClientTool]:
    for at, each in enumerate(tools):
        place = f"tools[{at}]"
        tool = an_object(each, place)
        if tool.get("type", "function") == "function":
            yield client_tool(an_object(tool.get("function"), f"{place}.function"), f"{place}.function")


def _history(messages: Sequence[Mapping[str, Any]], own_tools: set[str]) -> list[Message]:
    history: list[Message] = []
    for at, message in enumerate(messages):
        if message.get("role") == "user":
            if content := _content(message):
                history.append({"role": "user", "content": content})
        elif message.get("role") == "assistant":
            history += _assistant(message, messages[at + 1 :], own_tools)
    return history


def _assistant(
    message: Mapping[str, Any], following: Sequence[Mapping[str, Any]], own_tools: set[str]
) -> list[Message]:
    """Return the text of an assistant message. If its calls of the client's tools have results, return these calls and results."""
    results = {answer.call_id: answer.data for answer in _answers(following)}
    calls = message.get("tool_calls")
    known = [
        {"id": call["id"], "type": "function", "function": {"name": name, "arguments": call_arguments(call)}}
        for call in (calls if is_array(calls) else ())
        if (name := _name_of(call)) in own_tools and isinstance(call.get("id"), str) and call["id"] in results
    ]
    text = text_of(message.get("content"))
    if not known:
        return [{"role": "assistant", "content": text}] if text else []
    ids = [str(call["id"]) for call in known]
    answers = [{"role": "tool", "tool_call_id": each, "content": results[each]} for each in ids]
    return [{"role": "assistant", "content": text or None, "tool_calls": known}, *answers]


def _name_of(call: object) -> str | None:
    function = call.get("function") if is_object(call) else None
    name = function.get("name") if is_object(function) else None
    return name if isinstance(name, str) else None


def _answers(messages: Sequence[Mapping[str, Any]]) -> Iterator[CallAnswer]:
    for message in messages:
        if message.get("role") == "tool" and isinstance(call := message.get("tool_call_id"), str):
            yield CallAnswer(call, data=text_of(message.get("content")))


def _content(message: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return user_content(map(_part, content if is_array(content) else ()))


def _part(part: object) -> dict[str, Any] | None:
    if is_object(part) and part.get("type") == "text":
        return {"type": "text", "text": str(part.get("text") or "")}
    image = part.get("image_url") if is_object(part) and part.get("type") == "image_url" else None
    if not (is_object(image) and isinstance(image.get("url"), str)):
        return None
    return {"type": "image_url", "image_url": dict(image)}

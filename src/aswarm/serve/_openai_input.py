"""What a request of Chat Completions asks for.

A client of this API has no place for a conversation on the server, so it sends its history. Of it only the texts of user and
assistant are read, and calls of the client's own tools with their results. The caller decides whether it counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aswarm._json import is_array, is_object
from aswarm._messages import Message, call_arguments, text_of

from ._requests import (
    CallAnswer,
    ClientTool,
    NewMessage,
    RequestError,
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
    """What a client asks for.

    `history`: the texts of user and assistant, with the calls of the client's tools; for a service that keeps no
    conversation. `messages`: what the user has said since the last answer; for one that does. `answers`: the results of the
    client's tools. `system`: its texts of the roles system and developer. `ignored`: the settings that have no effect.
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


class ChatRequestError(RequestError):
    """A request that cannot be served, with the status that clients of that API know."""


def chat_request(body: object) -> ChatRequest:
    """What the body asks for. Raises ChatRequestError.

    Settings that a swarm decides by itself are named in `ignored`. Those of which a client would believe that they were
    obeyed (`n`, `logprobs`, `response_format`) are an error.
    """
    try:
        return _read(an_object(body, "body"))
    except ChatRequestError:
        raise
    except RequestError as error:
        raise ChatRequestError(400, error.code, error.message, param=error.param) from error


def unknown_model(name: str) -> ChatRequestError:
    """The error for a model that is no agent here."""
    return ChatRequestError(404, "model_not_found", f"The model {name!r} does not exist.", param="model")


def _read(data: Mapping[str, Any]) -> ChatRequest:
    _refuse_settings(data)
    sent = a_list(data.get("messages"), "messages")
    messages = [an_object(each, f"messages[{at}]") for at, each in enumerate(sent)]
    if not any(message.get("role") == "user" and _content(message) for message in messages):
        raise ChatRequestError(
            400, "invalid_request", "messages has no message of the role user that has a content", param="messages"
        )
    tools = list(_tools(a_list(data.get("tools"), "tools")))
    options = data.get("stream_options")
    said = [NewMessage(_content(message)) for message in last_said(messages)]
    return ChatRequest(
        model=a_text(data.get("model"), "model"),
        history=_history(messages, {tool.name for tool in tools}),
        messages=[message for message in said if message.content],
        answers=list(_answers(messages)),
        system=[text_of(each.get("content")) for each in messages if each.get("role") in ("system", "developer")],
        tools=tools,
        stream=a_flag(data.get("stream"), "stream"),
        include_usage=is_object(options) and options.get("include_usage") is True,
        ignored=[key for key in _IGNORED if data.get(key) is not None],
    )


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
            raise ChatRequestError(400, "unsupported", f"{param} is not supported by this server", param=param)


def _tools(tools: list[Any]) -> Iterator[ClientTool]:
    for at, each in enumerate(tools):
        place = f"tools[{at}]"
        tool = an_object(each, place)
        if tool.get("type", "function") == "function":
            yield client_tool(an_object(tool.get("function"), f"{place}.function"), f"{place}.function")


def _history(messages: Sequence[Mapping[str, Any]], own_tools: set[str]) -> list[Message]:
    found: list[Message] = []
    for at, message in enumerate(messages):
        if message.get("role") == "user":
            if content := _content(message):
                found.append({"role": "user", "content": content})
        elif message.get("role") == "assistant":
            found += _assistant(message, messages[at + 1 :], own_tools)
    return found


def _assistant(
    message: Mapping[str, Any], following: Sequence[Mapping[str, Any]], own_tools: set[str]
) -> list[Message]:
    """The text of an assistant message, and those of its calls that are of the client's tools and have a result."""
    results = {answer.call: answer.content for answer in _answers(following)}
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
            yield CallAnswer(call, content=text_of(message.get("content")))


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

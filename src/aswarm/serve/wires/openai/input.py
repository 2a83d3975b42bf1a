"""Reader of the requests of Chat Completions and of their parameters.

This API has no conversations on the server, so a client sends its whole history. This module reads the texts of the user and of
the assistant, and the calls of the client's own tools with their results. The caller decides whether to use this history.

Each parameter has one of these uses, and none is ignored:

- The service reads it (`messages`, `stream`).
- It goes to the model with each request of the run (`temperature`, `max_tokens`).
- It is refused with 400, unless its value is the default, which changes nothing (`n=1`, `logprobs=false`).

A parameter that is not in this table, such as a parameter of the Responses API, is refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._values.json import is_array, is_count, is_object, shown
from aswarm._values.messages import Message, call_arguments
from aswarm.runs import CallAnswer, ClientTool, InvalidRequest
from aswarm.runs.executors import an_object, invalid
from aswarm.serve.wires.parts import chat_parts, check_keys, unsupported
from aswarm.serve.wires.requests import (
    NewMessage,
    a_flag,
    a_list,
    a_text,
    an_optional_text,
    client_tool,
    last_said,
    user_content,
)

_SHOWN = 100
_MOST_STOPS = 4

# The service reads these parameters itself.
READ = frozenset({"model", "messages", "stream", "stream_options", "tools", "tool_choice"})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_stop(value: object) -> bool:
    stops = value if is_array(value) else [value]
    return 0 < len(stops) <= _MOST_STOPS and all(isinstance(stop, str) and stop for stop in stops)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


# Parameters that go to the model, with a check and the words for it.
SENT: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "temperature": (_is_number, "a number"),
    "top_p": (_is_number, "a number"),
    "frequency_penalty": (_is_number, "a number"),
    "presence_penalty": (_is_number, "a number"),
    "seed": (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    "stop": (_is_stop, "a text, or a list of one to four texts"),
    "max_tokens": (is_count, "a whole number above 0"),
    "max_completion_tokens": (is_count, "a whole number above 0"),
    "parallel_tool_calls": (lambda value: isinstance(value, bool), "true or false"),
    "reasoning_effort": (_is_text, "a text"),
    "verbosity": (_is_text, "a text"),
    "user": (_is_text, "a text"),
}
# Parameters of Chat Completions that the Responses API does not have, with the default that changes nothing.
_CHAT_ONLY: Mapping[str, object] = {"stop": None, "seed": None, "frequency_penalty": 0, "presence_penalty": 0}

# Parameters that are refused unless they have this value.
DEFAULTS: Mapping[str, Collection[object]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "store": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "safety_identifier": (),
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "functions": ([],),
    "function_call": ("auto", "none"),
}


def refused(param: str, text: str) -> InvalidRequest:
    """Return the error for a parameter."""
    return InvalidRequest(text, code="unsupported", param=param)


def settings_in(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request that go to the model. Raises InvalidRequest for a parameter that is refused."""
    settings: dict[str, Any] = {}
    for key, value in data.items():
        if value is None or key in READ:
            continue
        if key in SENT:
            is_valid, wanted = SENT[key]
            if not is_valid(value) and value != []:
                text = f"{key} must be {wanted}, not {shown(value, _SHOWN)}"
                raise InvalidRequest(text, code="invalid_request", param=key)
            settings |= {} if value == [] else {key: value}
        elif not any(type(value) is type(default) and value == default for default in DEFAULTS.get(key, ())):
            raise refused(key, f"{key} is not supported by this server; leave it out")
    return settings


def check_for_responses(settings: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a parameter that the Responses API does not have, for a service that calls its model over it."""
    for key in settings:
        if key in _CHAT_ONLY and settings[key] != _CHAT_ONLY[key]:
            text = f"{key} is not supported: this server calls its model over the Responses API, which does not have it"
            raise refused(key, text)


def includes_usage(options: object) -> bool:
    """Return whether the stream has a chunk with the usage, from `stream_options`. Raises InvalidRequest."""
    if options is None:
        return False
    if not is_object(options):
        raise refused("stream_options", f"stream_options must be an object, not {shown(options, _SHOWN)}")
    for key, value in options.items():
        if key != "include_usage" and value not in (None, False):
            raise refused(
                f"stream_options.{key}", f"stream_options.{key} is not supported by this server; leave it out"
            )
    return a_flag(options.get("include_usage"), "stream_options.include_usage")


def offers_tools(choice: object) -> bool:
    """Return whether the model may call the tools of the client, from `tool_choice`. Raises InvalidRequest."""
    if choice not in (None, "auto", "none"):
        text = 'tool_choice must be "auto" or "none": the agent decides which tool it calls'
        raise refused("tool_choice", text)
    return choice != "none"


_USER_KEYS = ("content", "name")
# Keys of an assistant message with content that the service cannot send to a model.
_NOT_TAKEN = ("audio", "images", "function_call")
_OTHER_KEYS = ("role", "id", "content", "refusal", "tool_calls", "tool_call_id")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request of a client.

    `history`: the texts of the user and of the assistant, with the calls of the client's tools; used for a request without a
    conversation on the server. `said`: the messages of the user in it. `messages`: the user's messages since the last answer;
    used for a request with a conversation. `answers`: the results of the client's tools. `system`: the texts of the roles system and developer. `settings`: the
    parameters for the model. `left_out`: what the service does not use of the request, for its log. `offers_tools`: whether the
    model may call the client's tools.
    """

    model: str
    history: Sequence[Message] = ()
    said: Sequence[NewMessage] = ()
    messages: Sequence[NewMessage] = ()
    answers: Sequence[CallAnswer] = ()
    system: Sequence[str] = ()
    tools: Sequence[ClientTool] = ()
    stream: bool = False
    include_usage: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    left_out: Sequence[str] = ()
    offers_tools: bool = True


def chat_request(body: object) -> ChatRequest:
    """Return the request in a body. Raises InvalidRequest.

    No parameter is ignored, see the start of this module.
    """
    data = an_object(body, "body")
    settings = settings_in(data)
    sent = a_list(data.get("messages"), "messages")
    messages = [an_object(item, f"messages[{at}]") for at, item in enumerate(sent)]
    new, _ = last_said(messages, _new_message)
    answers = list(_answers(messages))
    tools = _tools(data)
    said = {
        at: _new_message(message, f"messages[{at}]")
        for at, message in enumerate(messages)
        if message.get("role") == "user"
    }
    history, left_out = _history(messages, said, {tool.name for tool in tools})
    if not any(message["role"] == "user" for message in history):
        raise InvalidRequest(
            "messages must have a message with the role user and a content",
            code="invalid_request",
            param="messages",
        )
    return ChatRequest(
        model=a_text(data.get("model"), "model"),
        history=history,
        said=[*said.values()],
        messages=new,
        answers=answers,
        system=_system(messages),
        tools=tools,
        stream=a_flag(data.get("stream"), "stream"),
        include_usage=includes_usage(data.get("stream_options")),
        settings=settings,
        left_out=left_out,
        offers_tools=offers_tools(data.get("tool_choice")),
    )


def unknown_model(name: str) -> InvalidRequest:
    """Return the error for a model name that is not the name of an agent."""
    return InvalidRequest(f"The model {name!r} does not exist.", code="model_not_found", param="model")


def _tools(data: Mapping[str, Any]) -> list[ClientTool]:
    tools: list[ClientTool] = []
    for at, item in enumerate(a_list(data.get("tools"), "tools")):
        place = f"tools[{at}]"
        tool = an_object(item, place)
        if (kind := tool.get("type", "function")) != "function":
            raise refused(
                f"{place}.type", f"{place} has the type {shown(kind, _SHOWN)}; this server takes only functions"
            )
        tools.append(client_tool(an_object(tool.get("function"), f"{place}.function"), f"{place}.function"))
    return tools


def _history(
    messages: Sequence[Mapping[str, Any]], said: Mapping[int, NewMessage], own_tools: set[str]
) -> tuple[list[Message], list[str]]:
    """Return the history, and what is left out of it for the log. `said`: the messages of the user by their index."""
    history: list[Message] = []
    calls = 0
    for at, message in enumerate(messages):
        place = f"messages[{at}]"
        match message.get("role"):
            case "user":
                history += [said[at].message] if said[at].content else []
            case "assistant":
                calls += len(a_list(message.get("tool_calls"), f"{place}.tool_calls"))
                history += _assistant(message, messages[at + 1 :], own_tools, place)
            case "tool" | "system" | "developer":  # see `_assistant` and `_system`
                pass
            case role:
                raise invalid(f"{place}.role", '"user", "assistant", "tool", "system" or "developer"', role)
    results = [message.get("role") for message in messages].count("tool")
    known = [message["role"] for message in history].count("tool")
    is_whole = known == calls == results
    left_out = [] if is_whole else ["calls and results of functions that are not in tools of the request"]
    others = [message for message in messages if message.get("role") != "user"]
    left_out += [
        f"messages.{key}" for other in others for key, value in other.items() if key not in _OTHER_KEYS and value
    ]
    return history, left_out


def _assistant(
    message: Mapping[str, Any], following: Sequence[Mapping[str, Any]], own_tools: set[str], place: str
) -> list[Message]:
    """Return the text of an assistant message. If its calls of the client's tools have results, return these calls and results."""
    for key in _NOT_TAKEN:
        if message.get(key):
            raise unsupported(f"{place}.{key}", key, "send the text of the message, and its calls as tool_calls")
    results = {answer.call_id: answer.data for answer in _answers(following)}
    calls = message.get("tool_calls")
    known = [
        {"id": call["id"], "type": "function", "function": {"name": name, "arguments": call_arguments(call)}}
        for call in (calls if is_array(calls) else ())
        if (name := _name_of(call)) in own_tools and isinstance(call.get("id"), str) and call["id"] in results
    ]
    text = _text(message, place) or str(message.get("refusal") or "")
    if not known:
        return [{"role": "assistant", "content": text}] if text else []
    ids = [str(call["id"]) for call in known]
    answers = [{"role": "tool", "tool_call_id": call_id, "content": results[call_id]} for call_id in ids]
    return [{"role": "assistant", "content": text or None, "tool_calls": known}, *answers]


def _name_of(call: object) -> str | None:
    function = call.get("function") if is_object(call) else None
    name = function.get("name") if is_object(function) else None
    return name if isinstance(name, str) else None


def _answers(messages: Sequence[Mapping[str, Any]]) -> Iterator[CallAnswer]:
    for at, message in enumerate(messages):
        if message.get("role") == "tool" and isinstance(call := message.get("tool_call_id"), str):
            yield CallAnswer(call, data=_text(message, f"messages[{at}]"))


def _system(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    roles = ("system", "developer")
    return [_text(message, f"messages[{at}]") for at, message in enumerate(messages) if message.get("role") in roles]


def _text(message: Mapping[str, Any], place: str) -> str:
    """Return the text of a message that can have only text. Raises InvalidRequest for a part of another type."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    for at, part in enumerate(a_list(content, f"{place}.content")):
        data = an_object(part, part_place := f"{place}.content[{at}]")
        if data.get("type") not in ("text", "refusal"):
            raise unsupported(
                part_place, data.get("type"), f"a message with the role {message.get('role')} takes only text"
            )
        check_keys(data, ("text", "refusal"), part_place)
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content or ())


def _new_message(message: Mapping[str, Any], place: str) -> NewMessage:
    check_keys(message, _USER_KEYS, place)
    content, name = message.get("content"), an_optional_text(message.get("name") or None, f"{place}.name")
    if not isinstance(content, str):
        content = user_content(chat_parts(a_list(content, f"{place}.content"), f"{place}.content"))
    return NewMessage(content, name=name, place=f"{place}.content")

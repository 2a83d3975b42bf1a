"""Rules about histories: what counts as a message, which calls are open, and what is sent to the provider.

A call is identified by its message and position, never by its id alone: real servers (and every mock) repeat ids.
No function here changes a message that it was given.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

from pydantic_core import from_json

from ._errors import ConfigurationError
from ._json import is_array, is_object, shown

Message = dict[str, Any]

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PLAIN = ("role", "content")
_SPEAKERS = ("user", "assistant", "system", "developer")
_LINE = 80  # how much of a value an error message shows
# Keys that aswarm itself puts on messages. Mistral and Groq refuse unknown keys, so they never reach the wire.
# `WAITING`: what the calls that wait for a decision wait for; on the assistant message, or on a tool message that a
# resumed run made in place of an answer.
WAITING = "waiting"
_OWN_KEYS = frozenset({"sender", "tool_name", WAITING})
# What the API puts on answers, such as the citations of a search, and does not take back.
_ANSWER_KEYS = frozenset({"annotations"})
_NEVER_SENT = _OWN_KEYS | _ANSWER_KEYS
# What makes an assistant message without calls worth sending; Mistral refuses one that has nothing.
_SUBSTANCE = ("content", "refusal", "audio", "function_call", "responses_output")
INTERRUPTED = "not run: interrupted"
OUTCOME_UNKNOWN = "cancelled; its outcome is unknown"
STILL_RUNNING = "; it may still be running"


def normalize(messages: object) -> list[Message]:
    """The messages as a new list of dicts: a str is one user message, SDK objects are dumped, dicts stay as they are.

    Raises ConfigurationError that names the position and the fault.
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not is_array(messages):
        raise ConfigurationError(
            f"messages must be a list of messages or a str, not {type(messages).__name__}; "
            'for example [{"role": "user", "content": "Hi"}]'
        )
    return [
        item if _is_plain(item) else _normalize_one(item, f"messages[{position}]")
        for position, item in enumerate(messages)
    ]


def _is_plain(item: Any) -> TypeGuard[Message]:
    # Most messages of a long history have a role and a text only: there is nothing to check and nothing to strip.
    kind: object = type(item)  # pyright: ignore[reportUnknownVariableType]
    return (
        kind is dict
        and len(item) == len(_PLAIN)
        and item.get("role") in _SPEAKERS
        and isinstance(item.get("content"), str)
    )


def _normalize_one(item: object, place: str) -> Message:
    message: Message = as_plain(item)
    if not isinstance(message, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - it is whatever the caller passed
        raise ConfigurationError(f"{place} is not a message: expected a dict with a role, got {shown(item, _LINE)}")
    role = message.get("role")
    if role not in ROLES:
        raise ConfigurationError(f"{place} has the role {shown(role, _LINE)}; expected one of {', '.join(ROLES)}")
    _check_content(message.get("content"), place)
    if role == "tool" and not isinstance(call_id := message.get("tool_call_id"), str):
        if not isinstance(call_id, int | float):
            raise ConfigurationError(
                f"{place} is a tool message without a tool_call_id; it must name the call it answers"
            )
        message = {**message, "tool_call_id": str(call_id)}
    if message.get("tool_calls") is not None:
        message = {**message, "tool_calls": _normalize_calls(message["tool_calls"], role, place)}
    if role in ("system", "developer", "user") and message.get("content") is None:
        raise ConfigurationError(f"{place} has no content; a {role} message must have some")
    return message


def _check_content(content: object, place: str) -> None:
    if not (content is None or isinstance(content, str) or is_array(content)):
        raise ConfigurationError(
            f"{place} has content {shown(content, _LINE)}; expected a str, a list of parts, or None"
        )
    for part in content if is_array(content) else ():
        if not is_object(part):
            raise ConfigurationError(f"{place} has the content part {shown(part, _LINE)}; expected a dict with a type")


def _normalize_calls(calls: object, role: object, place: str) -> list[Message]:
    if role != "assistant":
        raise ConfigurationError(
            f"{place} has tool_calls but the role {shown(role, _LINE)}; only assistant messages have them"
        )
    if not is_array(calls):
        raise ConfigurationError(f"{place} has tool_calls that are not a list: {shown(calls, _LINE)}")
    return [_normalize_call(call, f"{place}.tool_calls[{position}]") for position, call in enumerate(calls)]


def _normalize_call(call: object, place: str) -> Message:
    plain: Message = as_plain(call)
    if not isinstance(plain, dict) or not isinstance(plain.get("id"), str | int | float):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"{place} is not a tool call with an id: {shown(call, _LINE)}")
    if not isinstance(plain["id"], str):  # some servers send numbers, and other code may have stored them
        plain = {**plain, "id": str(plain["id"])}
    function = plain.get("function")
    if plain.get("type", "function") == "function" and not (
        is_object(function) and isinstance(function.get("name"), str)
    ):
        raise ConfigurationError(f"{place} has no function name: {shown(call, _LINE)}")
    if is_object(function) and is_object(function.get("arguments")):  # as some servers send them; the API wants text
        return {**plain, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}
    return plain


def as_plain(item: object) -> Any:
    """A wire object as plain data: dicts as they are, pydantic objects dumped, attribute objects by their fields."""
    if is_object(item):
        return item if isinstance(item, dict) else dict(item)
    dump = getattr(type(item), "model_dump", None)
    # exclude_unset keeps the keys that the provider sent and no others.
    return dump(item, exclude_unset=True, warnings=False) if callable(dump) else item


def text_of(content: object) -> str:
    """The text of a message's content: a str as it is, the text parts of a list joined, otherwise empty."""
    if isinstance(content, str):
        return content
    parts = content if is_array(content) else ()
    return "".join(str(part.get("text") or "") for part in parts if is_object(part))


def call_name(call: Mapping[str, Any]) -> str:
    """The name of a call of any type; empty where the provider gave none."""
    named: Mapping[str, Any] = call.get("function") or call.get("custom") or {}
    return str(named.get("name") or "")


def call_arguments(call: Mapping[str, Any]) -> str:
    """The arguments of a call of a function as the model sent them; empty where there are none."""
    function: Mapping[str, Any] = call.get("function") or {}
    return str(function.get("arguments") or "")


def tool_message(call: Mapping[str, Any], content: str | list[dict[str, Any]]) -> Message:
    """The tool message that answers `call`."""
    return {"role": "tool", "tool_call_id": call["id"], "tool_name": call_name(call), "content": content}


def message_blocks(messages: Sequence[Message]) -> Iterator[tuple[Message, list[Message]]]:
    """The history as blocks: each message that is no tool message, with the answers that directly follow it.

    Answers at the very start belong to a call that was trimmed away; they come with an empty message. A tool message
    that only says what a call waits for is no answer.
    """
    head: Message = {}
    answers: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            if WAITING not in message or not is_array(message[WAITING]):
                answers.append(message)
            continue
        if head or answers:
            yield head, answers
        head, answers = message, []
    if head or answers:
        yield head, answers


def match_answers(calls: Sequence[Mapping[str, Any]], answers: Sequence[Message]) -> list[Message | None]:
    """For each call, in order, the tool message that answers it, or None. Each answer is used once.

    Calls with equal ids are matched by the tool's name where the message has one, then by order.
    """
    by_id: dict[str, Message] = {answer["tool_call_id"]: answer for answer in answers}
    if len(by_id) == len(answers) and len({call["id"] for call in calls}) == len(calls):
        return [by_id.get(call["id"]) for call in calls]
    found: list[Message | None] = [None] * len(calls)
    left: Iterable[int] = range(len(answers))
    # An answer that names its function must not go to a call of another function: the right call would then run again.
    for key_of_call, key_of_answer in _PASSES:
        queues: defaultdict[_Key, deque[int]] = defaultdict(deque)
        for position in left:
            queues[key_of_answer(answers[position])].append(position)
        for position, call in enumerate(calls):
            if found[position] is None and (queue := queues.get(key_of_call(call))):
                found[position] = answers[queue.popleft()]
        left = sorted(position for queue in queues.values() for position in queue)
    return found


# In each pass, answers and calls with an equal key belong together: those with the name of the call, those without a
# name, and then any that are left. A name that is no text is the name of no call.
_Key: TypeAlias = tuple[str, ...] | None
_PASSES: tuple[tuple[Callable[[Mapping[str, Any]], _Key], Callable[[Message], _Key]], ...] = (
    (
        lambda call: (call["id"], call_name(call)),
        lambda answer: (answer["tool_call_id"], name) if isinstance(name := answer.get("tool_name"), str) else None,
    ),
    (
        lambda call: (call["id"],),
        lambda answer: (answer["tool_call_id"],) if answer.get("tool_name") is None else None,
    ),
    (lambda call: (call["id"],), lambda answer: (answer["tool_call_id"],)),
)


def open_calls(messages: Sequence[Message]) -> list[Message]:
    """The calls at the end of the history that no tool message answers, in call order."""
    nothing: tuple[Message, list[Message]] = ({}, [])
    head, answers = next(message_blocks(messages[last_head(messages) :]), nothing)
    calls: list[Message] = head.get("tool_calls") or []
    return [call for call, answer in zip(calls, match_answers(calls, answers), strict=True) if answer is None]


def last_head(messages: Sequence[Message]) -> int:
    """The position of the last message that is no tool message; 0 if there is none."""
    position = len(messages) - 1
    while position > 0 and messages[position]["role"] == "tool":
        position -= 1
    return max(position, 0)


def to_wire(messages: Sequence[Message], *, empty_content: str | None = None) -> list[Message]:
    """The history as the API accepts it: our keys and nulls stripped, every call answered once and in order.

    A call that nothing answers is answered as interrupted; a tool message without its call and an assistant message
    with neither text nor calls are left out. What the provider itself put on a message (reasoning, signatures) stays:
    DeepSeek and Gemini refuse a history without it.

    `empty_content` is the content of an assistant message that has only calls: None (null, as OpenAI says) or "".
    """
    sent: list[Message] = []
    for head, answers in message_blocks(messages):
        if not answers and _is_plain(head) and head["content"]:
            sent.append({**head})
        elif head.get("role") == "assistant":
            sent.extend(_wire_assistant(head, answers, empty_content))
        elif head:
            sent.append(_clean(head))
    return sent


def _wire_assistant(head: Message, answers: list[Message], empty_content: str | None) -> Iterator[Message]:
    calls: list[Message] = head.get("tool_calls") or []
    message = _clean(head)
    if calls:
        message["tool_calls"] = [_clean_call(call) for call in calls]
        message["content"] = message.get("content") or empty_content
        yield message
    elif any(message.get(key) for key in _SUBSTANCE):
        yield message
    for call, answer in zip(calls, match_answers(calls, answers), strict=True):
        yield {"content": "", **_clean(answer or tool_message(call, INTERRUPTED))}


def _clean(message: Message) -> Message:
    return {
        key: value
        for key, value in message.items()
        # OpenAI refuses an empty list of tool calls (openai-node#1341), and no server needs another empty list.
        if key not in _NEVER_SENT and value is not None and (value != [] or key == "content")
    }


def _clean_call(call: Message) -> Message:
    cleaned = {key: value for key, value in call.items() if value is not None}
    function = call.get("function")
    if function is not None and not _is_json_object(function.get("arguments")):
        cleaned["function"] = {**function, "arguments": "{}"}
    return cleaned


def _is_json_object(text: object) -> bool:
    # vLLM, Ollama and llama.cpp parse the arguments of every earlier call, and refuse the whole history for one that is
    # cut off. The answer to the call tells the model what it had written.
    try:
        return isinstance(text, str) and isinstance(from_json(text, allow_inf_nan=False), dict)
    except ValueError:
        return False

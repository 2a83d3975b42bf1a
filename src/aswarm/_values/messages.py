"""Rules for histories: valid messages, and the calls without an answer. `wire_messages` has the form in which they are sent.

A call is identified by its message and its position in the message, because real servers (and every mock) repeat ids. No
function here changes a message.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import dropwhile, islice, takewhile
from operator import itemgetter
from typing import Any, TypeAlias, TypeGuard

from .content import described
from .errors import ConfigurationError
from .found_tools import CALL_TOOL, found_call
from .json import is_array, is_object, sendable_data, shown
from .text import one_line

Message = dict[str, Any]
"""A message, with the keys of Chat Completions."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
INSTRUCTING = frozenset({"system", "developer"})
_ASKING = INSTRUCTING | {"user"}
_SPEAKERS = ("user", "assistant", "system", "developer")
_RECORDED_KEYS = frozenset({"role", "content", "sender", "tool_calls"})  # of each assistant message of a run
_ROLE, _CONTENT = itemgetter("role"), itemgetter("content")
_RESULTS = 10  # the number of results in a sentence for the model of an outer run
_LINE = 80  # the length of a value in an error text
# Keys that aswarm adds to messages. They are never sent, because Mistral and Groq reject unknown keys.
# `WAITING`: a list of entries, one dict for each waiting call, with its position and the reason. The list is on the assistant
# message with the calls. A resumed run cannot change that message, so it adds a tool message with the new entries.
# `SENT_INPUT`: on an assistant message: the content that a guard sent in place of the user's messages before that message.
WAITING = "waiting"
SENT_INPUT = "sent_input"
FINAL_ANSWER = "final_answer"  # the function that a model calls with its answer
INTERRUPTED = "not run: interrupted"
OUTCOME_UNKNOWN = "cancelled; its outcome is unknown"
STILL_RUNNING = "; it may still be running"
LEFT_OUT = "(this earlier result is left out)"
# The line before a long result that is shortened, and kept under a handle.
HANDLE = re.compile(
    r"^\[result r[0-9a-f]{16}: [0-9,]+ characters\](?: \(only the first of [0-9,]+; the rest is lost\))?", re.MULTILINE
)
# A key in the data of a call that waits for an inner run: whether a function of this run has started.
STARTED_INSIDE = "started_inside"


def normalize(messages: object) -> list[Message]:
    """Return the messages as a new list of dicts. A str becomes a message of the user, and SDK objects become dicts.

    Raises ConfigurationError for an invalid message, with its position and the fault. A half of a surrogate pair, which UTF-8
    cannot encode, becomes U+FFFD. It is an error in a message of the user after the last message of an assistant.
    """
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if not is_array(messages):
        raise ConfigurationError(
            f"messages must be a list of messages or a str, not {type(messages).__name__}; "
            'for example [{"role": "user", "content": "Hi"}]'
        )
    plain: list[Message] = []
    broken: list[tuple[int, Message]] = []  # messages with text that UTF-8 cannot encode, repaired
    for position, item in enumerate(messages):
        is_text = is_text_message(item)
        plain.append(item if is_text else _normalize_one(item, f"messages[{position}]"))
        if not (is_text and item["content"].isascii()) and (whole := sendable_data(plain[-1])) is not plain[-1]:
            broken.append((position, whole))
    for position, whole in broken:
        plain[position] = _checked_repair(whole, plain, position)
    return plain


def _checked_repair(repaired: Message, messages: Sequence[Message], position: int) -> Message:
    """Return the repaired message. Raises ConfigurationError for a new message of the caller.

    A history may contain such text, because a tool or a model wrote it, or because an older version stored it.
    """
    if repaired["role"] in _ASKING and not any(map(_is_assistant, messages[position:])):
        raise ConfigurationError(
            f"messages[{position}] has half a surrogate pair, which UTF-8 cannot encode: "
            f"{shown(messages[position].get('content'), _LINE)}; decode bytes with errors='replace', or use "
            "text.encode(errors='backslashreplace').decode()"
        )
    return repaired


def are_plain(messages: object) -> TypeGuard[list[Message]]:
    """Return whether this is a list of messages with only a role and a text, as in most long histories.

    Such messages are valid, and are sent unchanged. The check needs no loop in Python.
    """
    if not is_array(messages) or set(map(type, messages)) != {dict} or set(map(len, messages)) != {2}:
        return False
    try:
        roles, texts = set(map(_ROLE, messages)), [*map(_CONTENT, messages)]
    except (KeyError, TypeError):  # a message without one of the keys, or a role that cannot be in a set
        return False
    if not roles.issubset(_SPEAKERS) or set(map(type, texts)) != {str} or "" in texts:
        return False
    return all(map(str.isascii, texts)) or sendable_data(texts) is texts


def is_text_message(item: Any) -> TypeGuard[Message]:
    """Return whether this is a valid message with only a role and a text, as a plain dict or as in `Response.messages`."""
    kind: object = type(item)  # pyright: ignore[reportUnknownVariableType]
    return (
        kind is dict
        and item.get("role") in _SPEAKERS
        and isinstance(item.get("content"), str)
        and (len(item) == 2 or (item.keys() == _RECORDED_KEYS and item["tool_calls"] is None))  # noqa: PLR2004
    )


def _normalize_one(item: object, place: str) -> Message:
    message: Message = as_plain(item)
    if not isinstance(message, dict):  # pyright: ignore[reportUnnecessaryIsInstance] - the caller may pass anything
        remedy = '; write {"role": "user", "content": ...}' if isinstance(item, str) else ""
        raise ConfigurationError(
            f"{place} is not a message: expected a dict with a role, got {shown(item, _LINE)}{remedy}"
        )
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
    if role in _ASKING and message.get("content") is None:
        raise ConfigurationError(f"{place} has no content; a {role} message must have some")
    return message


def _check_content(content: object, place: str) -> None:
    if not (content is None or isinstance(content, str) or is_array(content)):
        raise ConfigurationError(
            f"{place} has content {shown(content, _LINE)}; expected a str, a list of parts, or None"
        )
    for part in content if is_array(content) else ():
        if not is_object(part):
            kind = type(part).__name__
            remedy = f"write {kind}(...).part" if kind in ("Image", "File") else "expected a dict with a type"
            remedy = 'write {"type": "text", "text": ...}' if kind == "str" else remedy
            raise ConfigurationError(f"{place} has the content part {shown(part, _LINE)}; {remedy}")


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
    arguments = function.get("arguments") if is_object(function) else None
    if is_object(function) and is_object(arguments):  # some servers send an object, but the API needs text
        return {**plain, "function": {**function, "arguments": json.dumps(arguments, ensure_ascii=False)}}
    return plain


def as_plain(item: object) -> Any:
    """Return a mapping or a pydantic object as a dict. Return any other object unchanged."""
    if is_object(item):
        return item if isinstance(item, dict) else dict(item)
    dump = getattr(type(item), "model_dump", None)
    # With exclude_unset, the dict has exactly the keys that the provider sent.
    return dump(item, exclude_unset=True, warnings=False) if callable(dump) else item


def text_of(content: object) -> str:
    """Return the text of a message's content: the str, or the joined text parts of a list. Without text, return ""."""
    if isinstance(content, str):
        return content
    parts = content if is_array(content) else ()
    return "".join(str(part.get("text") or "") for part in parts if is_object(part))


def call_name(call: Mapping[str, Any]) -> str:
    """Return the name of a call of any type; empty if the provider sent none. See `found_tools` for `call_tool`."""
    named: Mapping[str, Any] = call.get("function") or call.get("custom") or {}
    name = str(named.get("name") or "")
    return name if name != CALL_TOOL else found_call(named)[0]


def call_arguments(call: Mapping[str, Any]) -> str:
    """Return the arguments of a function call as the model sent them; empty if there are none."""
    function: Mapping[str, Any] = call.get("function") or {}
    return str(function.get("arguments") or "") if function.get("name") != CALL_TOOL else found_call(function)[1]


def is_refused(messages: Sequence[Message]) -> bool:
    """Return whether the last message is a refusal of the model."""
    return bool(messages and messages[-1].get("refusal"))


def call_input(call: Mapping[str, Any]) -> str:
    """Return the arguments of a call of any type as the model sent them; empty if there are none."""
    custom: Mapping[str, Any] = call.get("custom") or {}
    return call_arguments(call) or str(custom.get("input") or "")


def tool_message(call: Mapping[str, Any], content: str | list[dict[str, Any]]) -> Message:
    return {"role": "tool", "tool_call_id": call["id"], "tool_name": call_name(call), "content": content}


def message_blocks(
    messages: Sequence[Message], marks: dict[int, list[Message]] | None = None
) -> Iterator[tuple[Message, list[Message]]]:
    """Yield the blocks of the history. A block is a message that is not a tool message, with the answers directly after it.

    Answers at the start of the history belong to a call that the caller has removed; they come with an empty message. A tool
    message with entries of waiting calls is not an answer. It is added to `marks`, by the id() of the message with the calls.
    """
    head: Message = {}
    answers: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            if WAITING not in message or not is_array(message[WAITING]):
                answers.append(message)
            elif marks is not None:
                marks.setdefault(id(head), []).append(message)
            continue
        if head or answers:
            yield head, answers
        head, answers = message, []
    if head or answers:
        yield head, answers


@dataclass(frozen=True, eq=False)
class MessageBlock:
    """A message of the history, with the tool messages that answer its calls. Blocks are compared by identity.

    `message`: a message of `Response.messages`, or of the caller. `answers`: its tool messages; empty for a message without
    calls. Do not change these dicts, because the history contains them. To send other content, create another block:
    `dataclasses.replace(block, answers=[...])`.
    """

    message: Mapping[str, Any]
    answers: Sequence[Mapping[str, Any]] = ()

    @property
    def role(self) -> str:
        """The role of the message: "user", "assistant", "system", "developer"."""
        return str(self.message["role"])

    @property
    def sender(self) -> str | None:
        """The name of the agent whose model wrote the message, or None."""
        sender = self.message.get("sender")
        return sender if isinstance(sender, str) else None

    @cached_property
    def without_results(self) -> MessageBlock:
        """The block with a short note in place of each longer result. It is the same object at each access.

        The first line of a long result that is kept elsewhere stays.
        """
        return replace(self, answers=[*map(_without_result, self.answers)])


def _without_result(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    content = answer.get("content")
    if isinstance(content, str) and len(content) <= len(LEFT_OUT):
        return answer
    line = HANDLE.search(described(content or ""))
    return {**answer, "content": LEFT_OUT if line is None else f"{line[0]}\n{LEFT_OUT}"}


def match_answers(calls: Sequence[Mapping[str, Any]], answers: Sequence[Message]) -> list[Message | None]:
    """Return for each call the tool message that answers it, or None. Each tool message answers at most one call.

    If ids repeat, an answer with a tool name is first matched by id and name. The rest is matched by id and order.
    """
    by_id: dict[str, Message] = {answer["tool_call_id"]: answer for answer in answers}
    if len(by_id) == len(answers) and len({call["id"] for call in calls}) == len(calls):
        return [by_id.get(call["id"]) for call in calls]
    matched: list[Message | None] = [None] * len(calls)
    left: Iterable[int] = range(len(answers))
    # An answer with a tool name must not answer a call of another tool. Otherwise the right call would look unanswered, and
    # would run again.
    for key_of_call, key_of_answer in _PASSES:
        queues: defaultdict[_Key, deque[int]] = defaultdict(deque)
        for position in left:
            queues[key_of_answer(answers[position])].append(position)
        for position, call in enumerate(calls):
            if matched[position] is None and (queue := queues.get(key_of_call(call))):
                matched[position] = answers[queue.popleft()]
        left = sorted(position for queue in queues.values() for position in queue)
    return matched


# Each pass matches calls and answers by equal keys. The first pass matches id and name. The second pass matches answers without
# a name, by id. The third matches all other answers, by id. The key None, for a name that is not a str, matches no call.
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


def settled(
    calls: Sequence[Message],
    answers: Sequence[Message | None],
    texts: Mapping[int, str],
    may_stay_open: Container[int] = (),
) -> list[Message | None]:
    """Return the answer of each call of a message: its own, or a new answer. None for a call that stays open.

    `texts`: the new answers by position; for another call, that it was interrupted. `may_stay_open`: positions. Such a call gets
    an answer nevertheless if a later call with the same id and name has one: a resumed run would give that answer to this call.
    """
    found, answered = [*answers], set[tuple[object, str]]()
    for position in reversed(range(len(calls))):
        call = calls[position]
        key = call["id"], call_name(call)
        if found[position] is None and (position not in may_stay_open or key in answered):
            found[position] = tool_message(call, texts.get(position, INTERRUPTED))
        if found[position] is not None:
            answered.add(key)
    return found


def unanswered_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the unanswered calls at the end of the history, in call order."""
    if not messages or not messages[start := last_head(messages)].get("tool_calls"):
        return []
    nothing: tuple[Message, list[Message]] = ({}, [])
    head, answers = next(message_blocks(messages[start:]), nothing)
    calls: list[Message] = head.get("tool_calls") or []
    return [call for call, answer in zip(calls, match_answers(calls, answers), strict=True) if answer is None]


def has_started_inside(data: object) -> bool:
    """Return whether the data of a waiting call contains an inner run in which a function has started."""
    return is_object(data) and data.get(STARTED_INSIDE) is True


def started_inside(head: Message, behind: Iterable[Message]) -> set[Any]:
    """Return the positions of the calls that wait for an inner run in which a function has started.

    `head`: the message with the calls. `behind`: the tool messages after it.
    """
    marked = [message[WAITING] for message in (head, *behind) if is_array(message.get(WAITING))]
    entries = [entry for group in marked for entry in group if is_object(entry) and isinstance(entry.get("index"), int)]
    return {entry["index"] for entry in entries if has_started_inside(entry.get("data"))}


def last_head(messages: Sequence[Message]) -> int:
    """Return the position of the last message that is not a tool message, or 0."""
    position = len(messages) - 1
    while position > 0 and messages[position]["role"] == "tool":
        position -= 1
    return max(position, 0)


def last_of_user(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of the user after the last answer.

    An assistant message with calls does not count as an answer, unless it calls the function for a typed answer.
    """
    earlier = dropwhile(_is_assistant, reversed(messages))
    tail = takewhile(lambda message: not _is_answer(message), earlier)
    return [message for message in tail if message["role"] == "user"][::-1]


def _is_answer(message: Message) -> bool:
    calls = message.get("tool_calls")
    return _is_assistant(message) and (not calls or any(call_name(call) == FINAL_ANSWER for call in calls))


def _is_assistant(message: Message) -> bool:
    return bool(message["role"] == "assistant")


def as_sent(messages: Sequence[Message]) -> list[Message]:
    """Return the history as it was sent: with the changes of guards to messages of the user; see `SENT_INPUT`."""
    sent: list[Message] = []
    for position, message in enumerate(messages):
        if SENT_INPUT in message and _is_assistant(message) and (replaceable := last_of_user(sent)):
            of_user = (at for at in range(len(sent) - 1, -1, -1) if sent[at]["role"] == "user")
            last, *others = islice(of_user, len(replaceable))
            replaced = {**sent[last], "content": message[SENT_INPUT]}
            sent[last] = _normalize_one(replaced, f"{SENT_INPUT} of messages[{position}]")
            for at in others:
                del sent[at]
        sent.append(message)
    return sent


def results_in_short(messages: Iterable[Message]) -> str:
    """Return the last results of functions as one sentence, "" if there are none.

    For the model of an outer run, if an inner run ends without an answer: it would take a finished action for one that never
    happened.
    """
    answers = [each for each in messages if each["role"] == "tool" and WAITING not in each]
    if not answers:
        return ""
    shown = [f"{each.get('tool_name')}: {one_line(described(each['content']), 100)}" for each in answers[-_RESULTS:]]
    more = f"{len(answers)} results, the last" if len(answers) > _RESULTS else "results"
    return f". Before, its functions had the {more}: {'; '.join(shown)}"

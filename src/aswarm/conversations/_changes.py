"""What a run adds to a stored history, and which part of the result a store can keep. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from aswarm._log.stored import Stored
from aswarm._values.context import context_error, context_faults
from aswarm._values.json import sendable_data
from aswarm._values.messages import (
    OUTCOME_UNKNOWN,
    Message,
    call_arguments,
    call_name,
    last_head,
    match_answers,
    message_blocks,
    settled,
    started_inside,
    unanswered_calls,
)


def with_sendable_text(stored: Stored) -> Stored:
    """Return the conversation with messages that UTF-8 can encode. Older versions stored any text."""
    messages = sendable_data(stored.messages)
    return stored if messages is stored.messages else replace(stored, messages=messages)


def with_new(stored: Stored, messages: list[Message]) -> list[Message]:
    """Return the stored history with the new messages. A tool message answers an open call; any other message closes all of them.

    Otherwise the history would have unanswered calls before its end, which the API refuses.
    """
    answers = 0
    while answers < len(messages) and messages[answers]["role"] == "tool":
        answers += 1
    history = [*stored.messages, *messages[:answers]]
    if answers == len(messages):
        return history
    return [*closed(history, stored), *messages[answers:]]


def closed(history: list[Message], stored: Stored) -> list[Message]:
    """Return the history without open calls: each open call gets an answer, in call order."""
    if not unanswered_calls(history):
        return history
    end = last_head(history)
    [(head, answers)] = message_blocks(history[end:])
    calls: list[Message] = head["tool_calls"]
    matched, started = match_answers(calls, answers), started_inside(head, history[end + 1 :])
    unknown = _unknown(stored, zip(calls, matched, strict=True))
    texts = {at: OUTCOME_UNKNOWN for at, call in enumerate(calls) if at in started or _key(call) in unknown}
    return [*history[: end + 1], *filter(None, settled(calls, matched, texts))]


def _unknown(stored: Stored, pairs: Iterable[tuple[Message, Message | None]]) -> Counter[tuple[str, str, str]]:
    """Return the calls with an unknown outcome, except calls whose answers say that it is unknown. A provider may repeat an id."""
    unknown = Counter((call.id, call.name, call.arguments) for call in stored.unknown_calls)
    unknown.subtract(
        _key(call) for call, answer in pairs if answer and str(answer["content"]).startswith(OUTCOME_UNKNOWN)
    )
    return +unknown


def _key(call: Message) -> tuple[str, str, str]:
    return str(call["id"]), call_name(call), call_arguments(call)


def without_last_question(messages: list[Message]) -> list[Message]:
    """Return the messages without the last messages of the user, which a guard has refused: the next run must not send them."""
    end = len(messages)
    while end and messages[end - 1]["role"] == "user":
        end -= 1
    return messages[:end]


def common_messages(before: list[Message], after: list[Message]) -> int:
    """Return the number of equal messages at the start of both lists."""
    for position, (old, new) in enumerate(zip(before, after, strict=False)):
        if old is not new and old != new:
            return position
    return min(len(before), len(after))


def storable(context: dict[Any, Any], stored: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the context variables to store, and the first fault or None.

    A variable that is not JSON keeps its stored value.
    """
    faulty = dict(context_faults(context))
    if not faulty:
        return context, None
    kept = {key: value for key, value in context.items() if key not in faulty}
    kept |= {key: stored[key] for key in faulty if key in stored}
    return kept, context_error(next(iter(faulty.values())))

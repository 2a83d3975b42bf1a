"""The check of a history: whether the API would accept it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aswarm._values.errors import ConfigurationError
from aswarm._values.messages import call_name, match_answers, message_blocks, normalize


def check_history(messages: Sequence[Mapping[str, Any]], *, allow_open: bool = False, ordered: bool = True) -> None:
    """Raise AssertionError if the API would not accept the history. The text names every fault.

    Each call must have exactly one answer. The answers must directly follow their message, in call order. Each tool message
    must belong to a call.

    `allow_open=True`: accept calls without an answer in the last assistant message, as after a run that can be resumed.
    `ordered=False`: accept answers in any order, as in a history that was resumed in part.
    """
    try:
        history = normalize(list(messages))
    except ConfigurationError as error:
        raise AssertionError(f"not a valid history: {error}") from error
    faults = list(_faults(history, allow_open=allow_open, ordered=ordered))
    if faults:
        raise AssertionError("not a valid history:\n" + "\n".join(faults))


def _faults(messages: list[dict[str, Any]], *, allow_open: bool, ordered: bool) -> Iterator[str]:
    # A block is a message and the tool messages directly after it, so an answer that comes too late has no call.
    blocks = list(message_blocks(messages))
    for head, answers in blocks:
        calls: list[dict[str, Any]] = head.get("tool_calls") or []
        paired = match_answers(calls, answers)
        for call, answer in zip(calls, paired, strict=True):
            if answer is None and not (allow_open and head is blocks[-1][0]):
                yield f"call {call['id']!r} of {call_name(call)!r} has no answer"
        in_call_order = [id(answer) for answer in paired if answer is not None]
        matched = set(in_call_order)
        for answer in answers:
            if id(answer) not in matched:
                yield f"tool message {answer.get('tool_call_id')!r} has no call before it"
        if ordered and in_call_order != [id(answer) for answer in answers if id(answer) in matched]:
            yield f"the answers to {[call['id'] for call in calls]} are not in call order"

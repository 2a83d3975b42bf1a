"""Matching of answers to calls by the plain rule, in quadratic time: the expected result of `match_answers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.support.values.histories import Message

Fits = Callable[[Message, str], bool]
# First an answer with the name of the call, then an answer without a name, then any.
PASSES: tuple[Fits, ...] = (
    lambda answer, name: answer.get("tool_name") == name,
    lambda answer, _: answer.get("tool_name") is None,
    lambda _answer, _name: True,
)


def match_by_rule(calls: Sequence[Message], answers: Sequence[Message]) -> list[Message | None]:
    """In each pass, match each open call with the first remaining answer that has its id and fits."""
    left = list(answers)
    found: list[Message | None] = [None] * len(calls)
    for fits in PASSES:
        for position, call in enumerate(calls):
            found[position] = found[position] or _take(call, left, fits)
    return found


def _take(call: Message, left: list[Message], fits: Fits) -> Message | None:
    for position, answer in enumerate(left):
        if answer["tool_call_id"] == call["id"] and fits(answer, call["function"]["name"]):
            return left.pop(position)
    return None

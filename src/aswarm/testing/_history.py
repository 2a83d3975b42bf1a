"""The check of a history: whether the API would accept it. Says every fault, decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aswarm._errors import ConfigurationError
from aswarm._messages import call_name, match_answers, message_blocks, normalize


def check_history(messages: Sequence[Mapping[str, Any]], *, allow_open: bool = False, ordered: bool = True) -> None:
    """Raise AssertionError, naming every fault, unless the API would accept the history.

    Every call is answered exactly once, by tool messages that directly follow, in call order; no tool message is
    without its call. `allow_open=True` accepts unanswered calls of the last assistant message (a run that can be
    resumed); `ordered=False` accepts answers in any order (a history that was resumed in part).
    """
    try:
        history = normalize(list(messages))
    except ConfigurationError as error:
        raise AssertionError(f"not a valid history: {error}") from error
    faults = list(_faults(history, allow_open=allow_open, ordered=ordered))
    if faults:
        raise AssertionError("not a valid history:\n" + "\n".join(faults))


def _faults(messages: list[dict[str, Any]], *, allow_open: bool, ordered: bool) -> Iterator[str]:
    found = list(message_blocks(messages))
    for head, answers in found:
        calls: list[dict[str, Any]] = head.get("tool_calls") or []
        paired = match_answers(calls, answers)
        for made, answer in zip(calls, paired, strict=True):
            if answer is None and not (allow_open and head is found[-1][0]):
                yield f"call {made['id']!r} of {call_name(made)!r} has no answer"
        matched = [answer for answer in paired if answer is not None]
        for answer in answers:
            if not any(answer is known for known in matched):
                yield f"tool message {answer.get('tool_call_id')!r} has no call before it"
        used = [id(answer) for answer in matched]
        if ordered and used != [id(answer) for answer in answers if id(answer) in used]:
            yield f"the answers to {[made['id'] for made in calls]} are not in call order"

"""What the decisions of a user mean for the calls that a resumed run begins with.

Decides which calls run, which are answered at once, and which stay open. Nothing in the history can approve a call: the
history only says what each call waits for. Never waits, and runs nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aswarm._decisions import Answer, Approve, Decision, Decisions, Deny
from aswarm._errors import ConfigurationError, Hold, ToolArgumentsError
from aswarm._json import is_json, is_object, shown
from aswarm._tools.conversion import as_result, parse_arguments
from aswarm._tools.tool import NeedsApproval

from .plan import Decided, ToolCall, ToolOutcome

DENIED = "not run: denied by the user"
UNDECIDED = "not decided"
_SHOWN = 200
_SHOWN_IDS = 5  # how many open calls an error text names

# What the history records of a call: its `reason`, and its `data` if there is any.
Entry = Mapping[str, Any]


def decide(calls: Sequence[ToolCall], decisions: bool | Decisions, entries: Mapping[int, Entry] | None) -> None:
    """Apply the decisions to the open calls at the end of a history: set their `decided`, `outcome` or `hold`.

    `decisions`: True runs all calls that can run here. `entries`: what the history records of the calls by position, or
    None if it says nothing. A call without a decision stays open. A call that only came after a waiting call runs in its
    turn: nothing was asked about it.

    Raises ConfigurationError for a decision that fits no open call, or not this one.
    """
    recorded = entries or {}
    earlier = {call.position: _restored(call, recorded.get(call.position, {})) for call in calls}
    if isinstance(decisions, bool):
        for call in calls:
            if not (call.tool and call.tool.is_external):
                call.decided = dataclasses.replace(earlier[call.position], is_approval=True)
        return
    given = _by_position(calls, decisions)
    undecided: set[tuple[str, str]] = set()
    for call in calls:
        key, entry = (call.id, call.name), recorded.get(call.position)
        # Answers are matched to calls of equal ids by their order, so an earlier one must not stay open.
        if call.position in given and key not in undecided:
            _apply(call, given[call.position], entry, earlier[call.position])
        else:
            undecided.add(key)
            nothing_asked = entry is None and entries is not None and call.position not in given
            call.hold = None if nothing_asked else _hold_of(entry or {})


def _restored(call: ToolCall, entry: Entry) -> Decided:
    """What earlier decisions have left of a call that still waits; its arguments are again those that a user has changed."""
    # All of it comes from the history, as the arguments of the model do: it says what would run, and approves nothing.
    arguments = entry.get("arguments")
    if arguments is not None:
        call.arguments = json.dumps(arguments, ensure_ascii=False)
    return Decided(arguments, entry.get("answer"), "answer" in entry, entry.get("data"))


def _hold_of(entry: Entry) -> Hold:
    kind = NeedsApproval if entry.get("approval") else Hold
    return kind(entry.get("reason", UNDECIDED), data=entry.get("data"))


def _by_position(calls: Sequence[ToolCall], decisions: Decisions) -> dict[int, Decision]:
    by_id: dict[object, list[int]] = {}
    for call in calls:
        by_id.setdefault(call.id, []).append(call.position)
    by_index: dict[object, int] = {str(call.position): call.position for call in calls}
    found: dict[int, Decision] = {}
    for key, decision in decisions.items():
        named = by_id.get(key, [])
        if len(named) > 1:
            indexes = " and ".join(map(str, named))
            raise ConfigurationError(
                f"resume names {key!r}, the id of several open calls; use their indexes: {indexes}"
            )
        position = named[0] if named else by_index.get(str(key))
        if position is None:
            ids = named_ids([call.id for call in calls])
            raise ConfigurationError(
                f"resume names {shown(key, _SHOWN)}, but no open call has this id or index; the open calls are {ids}"
            )
        if position in found:
            raise ConfigurationError(f"resume decides twice on the call {key!r}: by its id and by its index")
        found[position] = decision
    return found


def named_ids(ids: Sequence[str]) -> str:
    """The ids for an error text; the history, and so their number and length, may come from a browser."""
    more = f", and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(shown(each, 40) for each in ids[:_SHOWN_IDS]) + more


# --- one decision -----------------------------------------------------------------------------------------------------


def _apply(call: ToolCall, decision: Decision, entry: Entry | None, earlier: Decided) -> None:
    match _as_decision(call, decision):
        case str() as text:
            call.outcome = ToolOutcome(text)
        case Deny(reason):
            call.outcome = ToolOutcome(f"{DENIED}: {reason}" if reason else DENIED)
        case Approve(arguments, expected=expected):
            _check_expected(call, expected)
            _check_can_run(call)
            if arguments is None:
                arguments = earlier.arguments
            else:
                _change_arguments(call, arguments)
            call.decided = dataclasses.replace(earlier, arguments=arguments, is_approval=True)
        case answer:
            _check_expected(call, answer.expected)
            _check_asks(call, entry)
            if call.tool is not None and call.tool.is_external:
                call.outcome = ToolOutcome(as_result(answer.data).value)
            else:
                call.decided = dataclasses.replace(earlier, answer=answer.data, is_answered=True)
    if call.decided is not None and call.tool is not None and call.tool.check_decision is not None:
        call.tool.check_decision(call, earlier)


def _as_decision(call: ToolCall, decision: object) -> str | Approve | Deny | Answer:
    """The decision as a str or one of the three classes."""
    if isinstance(decision, str | Approve | Deny | Answer):
        return decision
    if isinstance(decision, bool):
        return Approve() if decision else Deny()
    if is_object(decision):
        form, value = next(iter(decision.items()), ("", None))
        read = _JSON_FORMS.get(form)
        if read is not None and len(decision) == 1 and (found := read(value)) is not None:
            return found
    raise ConfigurationError(
        f"resume says {shown(decision, _SHOWN)} of the call {call.id!r}; a decision is True, False, a str that the model is "
        'told, Approve, Deny or Answer; in JSON {"approve": {"arguments": {...}}}, {"deny": "reason"} or {"answer": data}'
    )


def _approval(value: object) -> Approve | Deny | None:
    if isinstance(value, bool):
        return Approve() if value else Deny()
    if is_object(value) and value.keys() <= {"arguments", "expected"}:
        return Approve(value.get("arguments"), expected=value.get("expected"))
    return None


def _denial(value: object) -> Deny | None:
    if value is True:
        return Deny()
    return Deny(value) if isinstance(value, str) else None


# Every other mapping is an error: a refusal with a mistake in it must not let the call run.
_JSON_FORMS: Mapping[str, Callable[[object], Approve | Deny | Answer | None]] = {
    "approve": _approval,
    "deny": _denial,
    "answer": Answer,
}


def _check_asks(call: ToolCall, entry: Entry | None) -> None:
    """Raise ConfigurationError if the call has asked nothing: an answer that means "no" would let it run."""
    may_need_approval = call.tool is not None and call.tool.approve is not False
    if (entry is None and may_need_approval) or (entry or {}).get("approval"):
        raise ConfigurationError(
            f"resume answers the call {call.id!r}, which asks for an approval and not for data; pass True, False, Approve(...) "
            'or Deny("reason")'
        )


def _check_expected(call: ToolCall, expected: Mapping[str, Any] | None) -> None:
    if expected is None:
        return
    try:
        arguments: object = parse_arguments(call.arguments)
    except ToolArgumentsError:
        arguments = call.arguments
    if arguments != expected:
        raise ConfigurationError(
            f"the decision on the call {call.id!r} was made for the arguments {shown(expected, _SHOWN)}, but the call has "
            f"{shown(arguments, _SHOWN)}; show the user the call as it is now, and let them decide again"
        )


def _check_can_run(call: ToolCall) -> None:
    if call.tool is not None and call.tool.is_external:
        raise ConfigurationError(
            f"the call {call.id!r} is one of the external tool {call.name!r}, which has no function to approve; pass its "
            "result as a str or Answer(data), or False"
        )


def _change_arguments(call: ToolCall, arguments: Mapping[str, Any]) -> None:
    if not (is_object(arguments) and is_json(dict(arguments))):
        raise ConfigurationError(
            f"the changed arguments of the call {call.id!r} must be a JSON object, not {shown(arguments, _SHOWN)}"
        )
    if call.tool is not None:
        try:
            call.tool.schema.validate(dict(arguments))
        except ToolArgumentsError as error:
            raise ConfigurationError(
                f"the changed arguments of the call {call.id!r} cannot be used: {error}"
            ) from error
    call.arguments = json.dumps(dict(arguments), ensure_ascii=False)

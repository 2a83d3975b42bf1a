"""The decisions of a user on the open calls of a resumed run, and the calls that wait for them.

An open call is a tool call without an answer in the history. `decide` determines which calls run, which get an answer at
once, and which stay open. The history cannot approve a call: it contains only the reason why the call waits. No I/O.

Security: Open calls at the end of `messages` run only with `resume=`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aswarm._tools.conversion import arguments_or_text, as_result
from aswarm._tools.tool import NeedsApproval
from aswarm._values.decisions import (
    AllApproved,
    Approve,
    CallDecision,
    Decision,
    Decisions,
    Deny,
    OpenCall,
    Reply,
    Resume,
    public_data,
)
from aswarm._values.errors import ConfigurationError, Hold, ToolArgumentsError, UndeclaredHold
from aswarm._values.events import CallWaiting, LoopEvent
from aswarm._values.json import is_json, is_object, sendable_data, shown
from aswarm._values.messages import has_started_inside

from .call import Call
from .outcome import OutcomeInside, ToolOutcome, returned

DENIED = "not run: denied by the user"
DENIED_INSIDE = "stopped: denied by the user, after functions had run inside; its outcome is unknown"
NOT_DECIDED = "not decided"
REPLACED = "a guard has changed the arguments since the decision"
CHANGED = "the tool has changed since the question"
_SHOWN = 200
_SHOWN_IDS = 5  # the number of open calls in an error text

# The entry of a waiting call in the history: the `reason`, the `data` if there is any, and earlier decisions.
Entry = Mapping[str, Any]


def check_resume(resume: Resume, unanswered: Sequence[str]) -> None:
    """Raise ConfigurationError if open calls have no `resume`, or decisions have no open calls."""
    if unanswered and resume is False:
        raise ConfigurationError(
            f"messages end with open calls ({named_ids(unanswered)}). Pass resume={{{shown(unanswered[0], 40)}: True}} with your "
            "decisions, resume=True to run the calls that need none, or, for a history from storage that you trust, "
            "resume=Approve.all() to run all. Or append their results"
        )
    if not unanswered and isinstance(resume, Mapping) and resume:
        raise ConfigurationError(
            f"resume has decisions, but messages have no open calls: {shown(dict(resume), _SHOWN)}; the calls may have been "
            'decided already. Leave out resume, or pass the messages of the run that stopped with stop="waiting"'
        )


def decide(calls: Sequence[Call], resume: Resume, entries: Mapping[int, Entry] | None) -> None:
    """Apply the decisions to the open calls at the end of a history: set their `decision`, `outcome` or `hold`.

    `resume`: the argument of the run, which is not False. `Approve.all()` approves all calls except calls of external tools.
    `entries`: the entries of the waiting calls in the history, by position; None if the history has no entries.

    A waiting call without a decision stays open. If there are entries or no decisions, a call without an entry runs in order,
    as if the model had just made it. Raises ConfigurationError for a decision that has no open call, or does not suit its call.
    """
    recorded = entries or {}
    earlier = {call.index: _restored(call, recorded.get(call.index, {})) for call in calls}
    if isinstance(resume, AllApproved):
        _approve_all(calls, recorded, earlier)
        return
    decisions: Decisions = {} if isinstance(resume, bool) else resume
    if not decisions:
        entries = recorded
    decided = by_position(calls, decisions)
    undecided: set[tuple[str, str]] = set()
    for call in calls:
        key, entry = (call.id, call.name), recorded.get(call.index)
        if call.index in decided:
            if key in undecided:
                raise ConfigurationError(_out_of_order(call))
            _apply(call, decided[call.index], entry, earlier[call.index])
        else:
            undecided.add(key)
            if entry is None and entries is not None:  # the call did not wait for a decision
                continue
            question: Entry = entry or {}
            kind = NeedsApproval if question.get("approval") else Hold
            call.wait(kind(question.get("reason", NOT_DECIDED), data=question.get("data")))


def _approve_all(calls: Sequence[Call], recorded: Mapping[int, Entry], earlier: Mapping[int, CallDecision]) -> None:
    for call in calls:
        if not _is_external(call):
            entry = recorded.get(call.index)
            seen = None if entry is None else _seen(call, entry)
            call.decide(dataclasses.replace(earlier[call.index], is_approval=True, seen=seen))


def _out_of_order(call: Call) -> str:
    return (
        f"resume decides on the call at index {call.index}, but not on an earlier call with the same id {call.id!r} and name; "
        "answers are matched to calls of equal ids by their order, so decide on the earlier call too, by its index"
    )


def _restored(call: Call, entry: Entry) -> CallDecision:
    """Return the earlier decisions on a call that still waits, and set the arguments that a user has changed."""
    # The entry comes from the history, which is not trusted: like the arguments of the model, it approves nothing.
    arguments = entry.get("arguments")
    if arguments is not None:
        call.arguments = json.dumps(arguments, ensure_ascii=False)
    # Without its version, a call that has waited is asked for again.
    version = str(entry.get("version")) if entry and call.tool is not None and call.tool.version is not None else None
    return CallDecision(arguments, entry.get("answer"), "answer" in entry, entry.get("data"), version=version)


def by_position(calls: Sequence[Call | OpenCall], decisions: Decisions) -> dict[int, Decision]:
    """Return the decisions by the positions of their calls. Raises ConfigurationError for a decision without an open call."""
    by_id: dict[object, list[int]] = {}
    for call in calls:
        by_id.setdefault(call.id, []).append(call.index)
    by_index: dict[object, int] = {str(call.index): call.index for call in calls}
    decided: dict[int, Decision] = {}
    for key, decision in decisions.items():
        positions = by_id.get(key, [])
        if len(positions) > 1:
            indexes = " and ".join(map(str, positions))
            raise ConfigurationError(
                f"resume names {key!r}, the id of several open calls; use their indexes: {indexes}"
            )
        position = positions[0] if positions else by_index.get(str(key))
        if position is None:
            ids = named_ids([call.id for call in calls])
            raise ConfigurationError(
                f"resume names {shown(key, _SHOWN)}, but no open call has this id or index; the open calls are {ids}"
            )
        if position in decided:
            raise ConfigurationError(f"resume decides twice on the call {key!r}: by its id and by its index")
        decided[position] = decision
    return decided


def named_ids(ids: Sequence[str]) -> str:
    """Return a short list of the ids for an error text. A history from a browser may contain many ids, and long ones."""
    more = f", and {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(shown(call_id, 40) for call_id in ids[:_SHOWN_IDS]) + more


# --- one decision -----------------------------------------------------------------------------------------------------


def _apply(call: Call, decision: Decision, entry: Entry | None, earlier: CallDecision) -> None:
    seen = _seen(call, entry or {})
    has_started = has_started_inside(earlier.data)
    match as_decision(call.id, decision):
        case str() as text:
            if _is_external(call):  # the client has executed the call
                call.start()
            call.finish(ToolOutcome(text, unknown=has_started))
        case Deny(reason):
            text = DENIED_INSIDE if has_started else DENIED
            call.finish(ToolOutcome(f"{text}: {reason}" if reason else text, unknown=has_started))
        case Approve(arguments, expected=expected):
            _check_expected(call, expected, seen)
            if _is_external(call):
                raise ConfigurationError(
                    f"the call {call.id!r} is for the external tool {call.name!r}, which has no function to approve; pass its "
                    "result as a str or Reply(data), or False"
                )
            if arguments is not None and not _are_equal(seen, arguments):
                _change_arguments(call, arguments)
                earlier, seen = dataclasses.replace(earlier, arguments=arguments, is_changed=True), arguments
            call.decide(dataclasses.replace(earlier, is_approval=True, seen=seen))
        case answer:
            _check_expected(call, answer.expected, seen)
            # An answer fits only a question. Without a question, the call would run, even if the user answered "no".
            may_need_approval = call.tool is not None and call.tool.approve is not False
            if (entry is None and may_need_approval) or (entry or {}).get("approval"):
                raise ConfigurationError(
                    f"resume answers the call {call.id!r}, which asks for an approval and not for data; pass True, False, "
                    'Approve(...) or Deny("reason")'
                )
            if _is_external(call):
                content = as_result(answer.data).value
                call.start()
                call.finish(OutcomeInside(content, returned=returned(content, answer.data)))
            else:
                data = sendable_data(answer.data)
                call.decide(dataclasses.replace(earlier, answer=data, is_answered=True, seen=seen))
    if call.decision is not None and call.tool is not None and call.tool.check_decision is not None:
        call.tool.check_decision(call)


def _is_external(call: Call) -> bool:
    return call.tool is not None and call.tool.is_external


def as_decision(call_id: str, decision: object) -> str | Approve | Deny | Reply:
    """Return the decision as a str or one of the three classes. Raises ConfigurationError for any other value."""
    if isinstance(decision, str | Approve | Deny | Reply):
        return decision
    form = {"approve": decision} if isinstance(decision, bool) else decision
    if is_object(form) and set(form) == {"answer", "expected"}:
        return Reply(form["answer"], expected=form["expected"])
    if is_object(form) and len(form) == 1:
        match next(iter(form.items())):
            case "approve", bool(value):
                return Approve() if value else Deny()
            case "approve", value if is_object(value) and value.keys() <= {"arguments", "expected"}:
                return Approve(value.get("arguments"), expected=value.get("expected"))
            case "deny", True | str() as reason:
                return Deny() if reason is True else Deny(reason)
            case "answer", data:
                return Reply(data)
            case _:
                pass
    # Any other mapping is an error. For example, a denial with a typing error must not let the call run.
    raise ConfigurationError(
        f"resume has {shown(decision, _SHOWN)} for the call {call_id!r}; a decision is True, False, a str (the result for the "
        'model), Approve, Deny or Reply; in JSON {"approve": {"arguments": {...}}}, {"deny": "reason"} or {"answer": data}'
    )


def _seen(call: Call, entry: Entry) -> Mapping[str, Any] | str:
    """Return the arguments that the user saw, in the form of `OpenCall.arguments`."""
    replaced: Mapping[str, Any] | None = entry.get("replaced")
    return arguments_or_text(call.arguments) if replaced is None else replaced


def _check_expected(call: Call, expected: Mapping[str, Any] | None, seen: Mapping[str, Any] | str) -> None:
    if (fault := fault_of_expected(call.id, expected, seen)) is not None:
        raise ConfigurationError(fault)


def fault_of_expected(call_id: str, expected: Mapping[str, Any] | None, seen: Mapping[str, Any] | str) -> str | None:
    """Return the error text if the user decided on other arguments than `seen`; otherwise None."""
    if expected is None or seen == expected:
        return None
    return (
        f"the decision on the call {call_id!r} was made for the arguments {shown(expected, _SHOWN)}, but the call has "
        f"{shown(seen, _SHOWN)}; show the user the current arguments, and let them decide again"
    )


def change_since(decision: CallDecision, call: Call) -> str | None:
    """Return the reason to ask again if a user decided on other arguments, or on another version of the tool; otherwise None."""
    if call.has_other_arguments:
        return REPLACED
    version = None if call.tool is None else call.tool.version
    return CHANGED if version is not None and decision.version not in (None, version()) else None


def _are_equal(seen: Mapping[str, Any] | str, arguments: object) -> bool:
    """Return whether these are the arguments that the user saw: a web page may send them back unchanged."""
    try:
        return is_object(seen) and json.dumps(seen, sort_keys=True) == json.dumps(arguments, sort_keys=True)
    except (TypeError, ValueError):
        return False


def _change_arguments(call: Call, arguments: Mapping[str, Any]) -> None:
    if not (is_object(arguments) and is_json(dict(arguments)) and sendable_data(arguments) is arguments):
        raise ConfigurationError(
            f"the changed arguments of the call {call.id!r} must be a JSON object with text that UTF-8 can encode, not "
            f"{shown(arguments, _SHOWN)}"
        )
    if call.tool is not None:
        try:
            call.tool._schema.validate(dict(arguments))
        except ToolArgumentsError as error:
            raise ConfigurationError(
                f"the changed arguments of the call {call.id!r} cannot be used: {error}"
            ) from error
    call.arguments = json.dumps(dict(arguments), ensure_ascii=False)


# --- calls that wait ---------------------------------------------------------------------------------------------------

# The plan of a turn needs the declaration before the call runs: a later call of the group could already have seen or changed the
# variables of the waiting call. So this depends only on the tool, and not on the other calls of the turn: a missing declaration is
# found with the first Hold.
_SHARED = "and its calls may run together with other calls, so this must be declared"


def undeclared_in_function(call: Call, hold: Hold) -> UndeclaredHold | None:
    """Return the error for a Hold that the function of the call has raised without a declaration, or None."""
    return _error(
        call,
        hold,
        f"the function {call.name!r} of the agent {call.agent.name!r} raised Hold, {_SHARED}: write @tool(may_wait=True) above "
        "it, or function_tool(..., may_wait=True)",
    )


def wait(call: Call, hold: Hold, emit: Callable[[LoopEvent], None], *, may_hold: bool) -> ConfigurationError | None:
    """Let the call wait for a decision. Return an error instead if this Hold is a mistake of a middleware.

    `may_hold`: whether each call of the group may wait.
    """
    if call.has_started or call.outcome:
        late = f"a middleware or tool_error raised Hold after the function of {call.name!r} had run"
        return ConfigurationError(f"{late}; raise it before the inner call_tool is called")
    # A call that has waited in an earlier run may wait again for its decision, and no middleware is asked.
    if call.hold is None and not may_hold and (fault := _undeclared_in_middleware(call, hold)) is not None:
        if fault.has_started:
            call.start()
        return fault
    call.wait(hold)
    data = public_data(hold.data)
    emit(CallWaiting(call.index, call.id, call.name, call.arguments, call.agent, hold.reason, data))
    return None


def _undeclared_in_middleware(call: Call, hold: Hold) -> UndeclaredHold | None:
    return _error(
        call,
        hold,
        f"a middleware raised Hold for the function {call.name!r} of the agent {call.agent.name!r}, {_SHARED}: the middleware "
        "must return dataclasses.replace(handlers, call_tool=call_tool, may_hold=True); for a guard, write "
        "guard_tool(..., may_wait=True)",
    )


def _error(call: Call, hold: Hold, text: str) -> UndeclaredHold | None:
    effects = None if call.tool is None else call.tool.effects
    # aswarm itself raises NeedsApproval, and `plan` knows these calls. A call that runs alone needs no declaration.
    if effects is None or isinstance(hold, NeedsApproval) or effects.may_wait or not effects.runs_together:
        return None
    error = UndeclaredHold(text, has_started=has_started_inside(hold.data))
    error.__cause__ = hold
    return error

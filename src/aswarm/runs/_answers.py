"""Answers of clients to open calls, as decisions for `resume=`. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from aswarm._record.entries import public_ids
from aswarm._record.entry_maker import CLIENT_TOOL
from aswarm._run.resuming import as_decision, by_position, fault_of_expected
from aswarm._tools.conversion import arguments_or_text
from aswarm._values.decisions import (
    RUNS_ELSEWHERE,
    Approve,
    Decision,
    Decisions,
    Deny,
    OpenCall,
    Reply,
    is_run_inside,
    open_calls,
    waiting_entries,
)
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_object, shown
from aswarm._values.messages import Message

from ._requests import CallAnswer, InvalidRequest, an_object

_SHOWN = 100


def decisions(
    answers: Iterable[CallAnswer],
    history: Sequence[Message],
    *,
    strict: bool = True,
    complete: bool = False,
    last_run: str | None = None,
) -> dict[int, Decision]:
    """Return the decisions about the open calls of a stored history, for the `resume=` of the next run.

    `last_run`: the id of the run that has left the calls open, or None if no run has left them; an answer that names another
    run is not accepted. An answer to this run may have the provider's id of the call, even if earlier calls had the same id.
    `complete`: whether each waiting call needs an answer.

    Raises InvalidRequest with the status 409 for a call that is not open. The status is 422 if an answer is missing, does not
    name its run, or has the wrong form.
    """
    ids = public_ids(history)
    unanswered = {call.index: call for call in open_calls(history)} if history else {}
    marks = (waiting_entries(history) or {}) if unanswered else {}
    by_index: dict[int, Decision] = {}
    for answer in answers:
        index = ids.get(answer.call_id, _index_of(answer, unanswered.values(), last_run))
        mark = marks.get(index, {})
        # The first answer closes the call of a tool that runs in another program, so such an answer needs no run id.
        is_elsewhere = mark.get("reason") == RUNS_ELSEWHERE or mark.get("data") == CLIENT_TOOL
        # An answer that names a run is never an answer to another run, or to calls that no run has left.
        is_current = (answer.run_id or None) == last_run or (answer.run_id is None and is_elsewhere)
        if index in unanswered and is_current:
            by_index[index] = _decision(answer, unanswered[index], mark)
        elif strict and index in unanswered and answer.run_id is None:
            raise InvalidRequest(
                f"the answer to the call {shown(answer.call_id, _SHOWN)} does not name the run that waits; send its id as run",
                code="run_missing",
            )
        elif strict:
            remedy = f"Open calls: {', '.join(names)}" if (names := _open_ids(ids, unanswered)) else "No call is open"
            if index in unanswered:
                remedy = "Another run waits for this call: load the open calls, and answer that run"
            raise InvalidRequest(
                f"the call {shown(answer.call_id, _SHOWN)} does not wait for an answer; it may already have one. {remedy}",
                code="call_not_open",
            )
    missing = [call.id for index, call in unanswered.items() if index in marks and index not in by_index]
    if complete and missing:
        raise InvalidRequest(
            f"the calls {', '.join(missing)} also wait for answers; send an answer to each call",
            code="answers_missing",
        )
    return by_index


def _open_ids(ids: Mapping[str, int], unanswered: Container[int]) -> list[str]:
    return [shown(public, _SHOWN) for public, index in ids.items() if index in unanswered]


def _index_of(answer: CallAnswer, open_calls: Collection[OpenCall], last_run: str | None) -> int:
    """Return the index of the call that an answer to the last run names by the id from the model, or by its index; otherwise -1."""
    if not answer.run_id or answer.run_id != last_run:
        return -1
    named = [call.index for call in open_calls if call.id == answer.call_id]
    by_index = [call.index for call in open_calls if str(call.index) == answer.call_id]
    indexes = named or by_index
    return indexes[0] if len(indexes) == 1 else -1


def answers_of(decisions: Decisions, run_id: str) -> list[CallAnswer]:
    """Return the answers to a run with these decisions. Raises ConfigurationError for a value that is no decision."""
    if not isinstance(decisions, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
        raise ConfigurationError(
            f"answer() needs a dict of decisions by call id, such as {{'call_1': True}}, not {shown(decisions, _SHOWN)}"
        )
    return [_answer_of(str(call), decision, run_id) for call, decision in decisions.items()]


def _answer_of(call_id: str, decision: Decision, run_id: str) -> CallAnswer:
    match as_decision(call_id, decision):
        case str() as text:
            return CallAnswer(call_id, run_id=run_id, result=text)
        case Deny(reason):
            return CallAnswer(call_id, run_id=run_id, approve=False, reason=reason)
        case Approve(arguments, expected=expected):
            return CallAnswer(call_id, run_id=run_id, approve=True, arguments=arguments, expected=expected)
        case reply:
            return CallAnswer(call_id, run_id=run_id, data=reply.data, expected=reply.expected)


def _decision(answer: CallAnswer, call: OpenCall, mark: Mapping[str, Any]) -> Decision:
    if answer.result is not None:
        return answer.result
    if answer.approve is None and mark.get("approval"):
        answer = _approval(answer)
    if answer.approve is False:
        return Deny(answer.reason)
    decision = (
        Reply(answer.data, expected=answer.expected)
        if answer.approve is None
        else Approve(answer.arguments, expected=answer.expected)
    )
    _check(call, decision, mark.get("data"))
    return decision


def _check(call: OpenCall, decision: Decision, data: Any) -> None:
    """Raise InvalidRequest if a decision, or a decision on a call inside this call, does not fit.

    A run checks this too. But here nothing has started, so the client gets the error as the response to its request.
    `data`: the data of the call in the history.
    """
    if not isinstance(decision, Approve | Reply):
        return
    if (fault := fault_of_expected(call.id, decision.expected, arguments_or_text(call.arguments))) is not None:
        raise InvalidRequest(fault, code="arguments_changed")
    if isinstance(decision, Approve) and decision.arguments is not None:
        an_object(decision.arguments, "arguments")
    if isinstance(decision, Reply) and is_run_inside(data):
        _check_inside(call, an_object(decision.data, "the answer to the calls inside the call"), data["messages"])


def _check_inside(call: OpenCall, decisions: Decisions, messages: Sequence[Message]) -> None:
    """Raise InvalidRequest if a decision on a call inside this call does not fit."""
    inside, marks = {call.index: call for call in open_calls(messages)}, waiting_entries(messages) or {}
    names = {name for inner in inside.values() for name in (inner.id, str(inner.index))}
    if closed := [str(name) for name in decisions if str(name) not in names]:
        raise InvalidRequest(
            f"inside the call {call.id!r}, no call with the id or index {shown(closed[0], _SHOWN)} waits for an answer",
            code="call_not_open",
        )
    try:
        by_index = by_position(list(inside.values()), decisions)
        decided = {index: as_decision(inside[index].id, decision) for index, decision in by_index.items()}
    except ConfigurationError as error:
        text = f"the answer to the call {call.id!r}: {error}"
        raise InvalidRequest(text, code="invalid_request") from error
    for index, decision in decided.items():
        _check(inside[index], decision, marks.get(index, {}).get("data"))


def _approval(answer: CallAnswer) -> CallAnswer:
    """Return the answer to an approval with `approve` set from its data. Raises InvalidRequest for other data."""
    data: Any = {"approved": answer.data} if isinstance(answer.data, bool) else answer.data
    if not (is_object(data) and isinstance(data.get("approved"), bool)):
        raise InvalidRequest(
            f"the call {shown(answer.call_id, _SHOWN)} waits for an approval, and the answer is {shown(answer.data, _SHOWN)}; "
            'send {"approved": true} or {"approved": false, "reason": "..."}',
            code="not_an_approval",
        )
    arguments, reason = data.get("arguments", data.get("editedArgs")), data.get("reason")
    expected = data.get("expected", answer.expected)
    return replace(
        answer,
        approve=data["approved"],
        arguments=None if arguments is None else an_object(arguments, "arguments"),
        expected=None if expected is None else an_object(expected, "expected"),
        reason=reason if isinstance(reason, str) else "",
    )

"""The stored form of a snippet that waits, and the decisions on its calls. Does no I/O.

It has the form of a run inside a call, so that programs that show such a run show the calls of a snippet too: one assistant message
with all calls of the code, and the tool messages of the finished calls. Nothing in it can approve a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from aswarm._run.call import Call, CallInside, ToolCall, TurnCalls
from aswarm._run.outcome import OutcomeInside, Returned
from aswarm._run.resuming import DENIED, DENIED_INSIDE, decide
from aswarm._run.turn import Turn
from aswarm._tools.tool import Tool
from aswarm._values.decisions import UNDECIDED, CallDecision, is_run_inside, waiting_entries
from aswarm._values.errors import CallerMistake, ConfigurationError, Hold
from aswarm._values.json import is_array, is_object, jsonable
from aswarm._values.messages import STARTED_INSIDE, WAITING, Message, call_name, match_answers, normalize

from ._sandbox import Surroundings
from ._values import Reading, final_value, raises, value_for_record

CODE = "code"


@dataclass(slots=True)
class CodeState:
    """The calls of a snippet so far.

    `delivered`: the positions of the calls whose results the code got, each time together. `finished`: the positions of the
    calls that finished in an earlier run; `failed`: of those that raised in the code; `not_run`: of those that were refused. `entries`: the entries of the calls that
    waited, by position. `readings`: how texts become values, by the names of the tools.
    """

    surroundings: Surroundings
    calls: TurnCalls = field(default_factory=TurnCalls)
    delivered: list[list[int]] = field(default_factory=list[list[int]])
    finished: set[int] = field(default_factory=set[int])
    failed: set[int] = field(default_factory=set[int])
    not_run: set[int] = field(default_factory=set[int])
    entries: Mapping[int, Mapping[str, Any]] = field(default_factory=dict[int, Mapping[str, Any]])
    had_started: bool = False
    readings: Mapping[str, Reading] = field(default_factory=dict[str, Reading])


def inside(
    message: Message, position: int, tool: Tool[..., Any] | None, outer: Call, readings: Mapping[str, Reading]
) -> CallInside:
    """Return a call of the code."""
    read = partial(value_for_record, readings.get(call_name(message), "any"))
    return CallInside(message, position, tool, outer, read)


def waited(call: ToolCall) -> Mapping[str, Any] | None:
    """Return the data of the snippet of a call that has waited, or None. Raises ConfigurationError for data of another form."""
    data = call.data
    if data is None:
        return None
    if not (is_run_inside(data) and is_object(data.get(CODE))):
        raise ConfigurationError(
            f"the call {call.id!r} of {call.name} has no snippet in its data; pass the messages of the run that stopped "
            'with stop="waiting", unchanged'
        )
    return data


def restored(
    call: Call,
    data: Mapping[str, Any],
    tools: Mapping[str, Tool[..., Any]],
    decision: CallDecision,
    readings: Mapping[str, Reading],
) -> CodeState:
    """Return the state of a snippet that has waited, with the decisions of this run on its calls.

    Raises ConfigurationError for a decision that does not suit, and for data that were changed.
    """
    try:
        head, *behind = normalize(data["messages"])
        made, code = head["tool_calls"], data[CODE]
        calls = TurnCalls(
            inside(each, position, tools.get(call_name(each)), call, readings) for position, each in enumerate(made)
        )
        delivered = [[*map(int, each)] for each in code["delivered"]]
        values = {int(position): each for position, each in code.get("values", {}).items()}
        failed, not_run = set(map(int, code["failed"])), set(map(int, code.get("not_run", ())))
        state = CodeState(
            Surroundings(**code["surroundings"]), calls, delivered, failed=failed, not_run=not_run, readings=readings
        )
        answers = match_answers(made, [each for each in behind if WAITING not in each])
        for each, answer in zip(calls, answers, strict=True):
            if answer is not None:
                content, value = answer["content"], values.get(each.index)
                own = None if value is None else Returned.from_record(content, value)
                each.finish(OutcomeInside(content, returned=own))
                each.merge()
                state.finished.add(each.index)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the snippet in the data of the call {call.id!r} cannot be read ({type(error).__name__}: {error}); pass the "
            "messages of the run that stopped, unchanged"
        ) from error
    state.entries = waiting_entries([head, *behind]) or {}
    state.had_started = bool(data.get(STARTED_INSIDE))
    open_ones = [each for each in calls if each.outcome is None]
    decide(open_ones, decision.inside, state.entries)
    return state


def hold_of(state: CodeState, turn: Turn) -> Hold:
    """Return the `Hold` of the outer call: the calls that wait, and the data to continue in another process."""
    agent, calls = state.calls[0].agent.name, [call.message for call in state.calls]
    head: Message = {"role": "assistant", "content": None, "sender": agent, "tool_calls": calls}
    messages, waiting = turn.added_to([head])
    has_started = state.had_started or any(call.has_started or call.has_started_inside for call in state.calls)
    stored = jsonable([{WAITING: [{"data": {"messages": messages}}]}])
    if not is_array(stored):
        raise CallerMistake(
            "a call inside code waits, and its data are nested too deeply to be stored; use fewer levels of agents as tools",
            has_started=has_started,
        )
    return Hold(
        "; ".join(f"{call.name} {call.reason}" for call in waiting if call.reason),
        data={
            "agent": agent,
            "messages": stored[0][WAITING][0]["data"]["messages"],
            "context_variables": {},
            "removed": [],
            STARTED_INSIDE: has_started,
            CODE: {
                "surroundings": asdict(state.surroundings),
                "delivered": state.delivered,
                "not_run": [call.index for call in state.calls if call.outcome and not has_run(call, state)],
                "failed": sorted(call.index for call in state.calls if has_failed(call, state)),
                "values": {str(call.index): each.recorded for call in state.calls if (each := value_of(call, state))},
            },
        },
    )


def check_decision(tools: Mapping[str, Tool[..., Any]], call: Call) -> None:
    """Raise ConfigurationError if the decision does not suit the snippet inside the call, before any other call runs."""
    data, decision = waited(call), call.decision or UNDECIDED
    if data is None:
        return
    if decision.is_changed:
        raise ConfigurationError(
            f"the call {call.id!r} of {call.name}: its code has started, so it cannot be changed; decide on the calls inside"
        )
    try:
        restored(call, data, tools, decision, {})
    except ConfigurationError as error:
        raise ConfigurationError(f"the call {call.id!r} of {call.name}: {error}") from error


# --- outcomes ---------------------------------------------------------------------------------------------------------


def has_failed(call: ToolCall, state: CodeState) -> bool:
    """Return whether the call raises in the code: it failed, or its function was not allowed to run."""
    outcome = call.outcome
    if outcome is None:
        return False
    if call.index in state.finished:  # its content may look like a refusal
        return call.index in state.failed
    return raises(call, outcome)


def value_of(call: ToolCall, state: CodeState) -> Returned | None:
    """Return the value of a call for the code. None if the call raises in the code, or has no outcome."""
    outcome = call.outcome
    if outcome is None or has_failed(call, state):
        return None
    return final_value(state.readings.get(call.name, "any"), outcome)


def has_run(call: ToolCall, state: CodeState) -> bool:
    """Return whether functions of the call have run, in this run or an earlier one. A refused call has not run."""
    if call.index in state.finished:
        return call.index not in state.not_run
    return call.has_started or (call.outcome is not None and call.outcome.unknown)


def is_denied(call: ToolCall, state: CodeState) -> bool:
    """Return whether a user has denied the call."""
    denied = (DENIED, DENIED_INSIDE)
    return has_failed(call, state) and call.outcome is not None and str(call.outcome.content).startswith(denied)

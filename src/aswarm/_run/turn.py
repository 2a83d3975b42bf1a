"""The current turn of a run: its tool calls, their answers, and the calls that wait for a decision of a user.

A run may stop in the middle of a turn. So the answers, the context changes and the handoff are valid at any moment. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from aswarm._tools.effects import Effects
from aswarm._tools.tool import NeedsApproval, Tool
from aswarm._values.agent import Agent, UnknownCall
from aswarm._values.content import Part, text_part, with_note
from aswarm._values.decisions import UNDECIDED, OpenCall, Resume, as_json, open_call, waiting_entries
from aswarm._values.errors import ConfigurationError
from aswarm._values.messages import (
    FINAL_ANSWER,
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    STILL_RUNNING,
    WAITING,
    Message,
    call_name,
    tool_message,
)
from aswarm._values.output import ACCEPTED

from .call import Call, TurnCalls
from .resuming import decide, named_ids

# A turn may have thousands of calls, and `attrgetter` calls no function of Python.
_RUNS_TOGETHER, _MAY_HAND_OFF = attrgetter("runs_together"), attrgetter("may_hand_off")
_WRITES_CONTEXT, _MUST_SEE_ORDER = attrgetter("writes_context"), attrgetter("must_see_order")


def plan(calls: Sequence[Call], *, concurrent: bool = True, may_hold: bool = False) -> list[list[Call]]:
    """Return the calls in groups. The groups run one after another; the calls of one group run together.

    `may_hold`: whether a middleware of the run may raise Hold for any call, so that the call waits for a decision.
    """
    if len(calls) == 1:
        return [[*calls]]
    groups: list[list[Call]] = []
    # `together`: the effects of all tools of the last group. `waiting`: of the tools whose calls in this group may wait for a
    # decision. A dict contains each tool once, so a turn with thousands of calls takes linear time.
    together: dict[int, Effects] = {}
    waiting: dict[int, Effects] = {}
    keys: set[tuple[str, str]] = set()  # the id and name of each call that may wait, even without a tool
    for call in calls:
        effects = None if call.tool is None else call.tool.effects
        joins = groups and concurrent and _fits(effects, together.values())
        # A call without a tool may be for a tool that the client executes. A guard may change the arguments of a decided call
        # once more, and then the call waits for another decision.
        may_wait = (
            may_hold
            or effects is None
            or effects.may_wait
            or (call.decision is not None and call.decision.seen is not None)
        )
        # Calls with equal id and name never share a group. The answer of the later call would close the earlier, waiting call.
        if not joins or (
            keys and ((call.id, call.name) in keys or not _may_pass(call, waiting.values(), may_wait=may_wait))
        ):
            groups.append([])
            together.clear()
            waiting.clear()
            keys.clear()
        groups[-1].append(call)
        if effects is not None:
            together[id(effects)] = effects
        if call.hold is not None or (may_wait and call.outcome is None):
            keys.add((call.id, call.name))
            if effects is not None:
                waiting[id(effects)] = effects
    return groups


def _may_pass(call: Call, waiting: Iterable[Effects], *, may_wait: bool) -> bool:
    """Return whether a call may run while earlier calls wait for a decision.

    `waiting`: the effects of the tools of these earlier calls. `may_wait`: whether this call may wait too. Return False if this
    call or a waiting call may hand off, because a handoff closes waiting calls. Also return False if one of the two calls may
    change context variables that the other call uses.
    """
    tool = call.tool
    # A handoff to an agent closes no waiting calls: it runs again after their decisions, see `reopened` in `call`.
    if tool is None or call.outcome is not None or tool.is_handoff:
        return True
    effects = tool.effects
    if effects.may_hand_off or (may_wait and any(map(_MAY_HAND_OFF, waiting))):
        return False
    if effects.writes_context:
        return not any(other.takes_context or other.may_return_result for other in waiting)
    return not (effects.must_see_order and any(map(_WRITES_CONTEXT, waiting)))


def _fits(effects: Effects | None, together: Iterable[Effects]) -> bool:
    """Return whether a call may run together with earlier calls. `effects`: None for a call without a tool."""
    if effects is None:  # the call runs no function
        return all(map(_RUNS_TOGETHER, together))
    if not effects.runs_together or not all(map(_RUNS_TOGETHER, together)):
        return False
    if effects.must_see_order:
        return not any(other.may_return_result or other.writes_context for other in together)
    return not (effects.writes_context and any(map(_MUST_SEE_ORDER, together)))


Entry: TypeAlias = Mapping[str, Any]


class TurnEnd(NamedTuple):
    """The end of a turn, as the record of the run keeps it. Each call is identified by its position in the message.

    `answers`: the tool messages, in call order. `open_calls`: the calls without an answer. `waiting`: the entries of open calls
    that wait for a decision. `kept`: the waiting calls whose entry is already in the history of an earlier run. `unknown`: the
    calls whose outcome is not known; for an open call, it would not be known if the call were closed.
    """

    answers: dict[int, Message]
    open_calls: list[int]
    waiting: dict[int, Entry]
    kept: list[int]
    unknown: list[int]


class Turn:
    """The calls of the current turn of a run.

    `calls`: the calls of the last completion, or the open calls of an earlier run; empty after the turn.
    `waits`: whether the turn stays open, because a call waits for a decision.
    `unknown_calls`: the calls of earlier turns whose outcome is not known.
    """

    def __init__(self, calls: TurnCalls, recorded: Mapping[int, Entry] | None = None) -> None:
        """Start a turn with these calls. `recorded`: the entries of waiting calls in the history, by position."""
        self.calls = calls
        self.waits = False
        self.unknown_calls: list[UnknownCall] = []
        self._has_started = False
        self._recorded: Mapping[int, Entry] = recorded or {}
        self._finished = TurnCalls()

    def finish_group(self, group: Iterable[Call]) -> bool:
        """Mark the calls of a group as merged. Return False if the turn stops, because a call waits."""
        has_hold = False
        for call in group:
            if call.hold is not None:
                has_hold = True
            else:
                call.merge()
        if has_hold and self.calls.must_wait():
            self.waits, self.calls = True, self.calls.reopened()
            return False
        return True

    @property
    def has_started(self) -> bool:
        """Whether a function has started: in this turn, in an earlier turn of the run, or in an inner run of a waiting call."""
        if not self._has_started:
            for call in self.calls:
                if call.has_started or call.has_started_inside:
                    return True
        return self._has_started

    @property
    def lost_decisions(self) -> list[str]:
        """The ids of the decided calls that the run did not reach, because another call waits."""
        return [call.id for call in self.calls if call.decision and call.progress == "planned"]

    def fail_handoffs(self, reason: str) -> None:
        """Remove the handoffs of the turn. The recorded results do not change; the messages of the calls get the reason."""
        for call in self.calls:
            call.refuse_handoff(reason)

    def finish(self) -> list[Message]:
        """Finish the turn. Return its tool messages in call order."""
        calls = self.calls
        self.unknown_calls += calls.unknown_calls()
        self._has_started = self._has_started or self.has_started
        self.calls, self._recorded, self._finished = TurnCalls(), {}, calls
        return _answers_of(calls)

    # --- a run that stops now ---

    def as_stopped(self) -> Turn:
        """Return the turn as it is if the run stops now. If a call waits, some other calls are open again too."""
        return Turn(self.calls.reopened(), self._recorded) if self.calls.must_wait() else self

    def added_to(self, messages: list[Message]) -> tuple[list[Message], list[OpenCall]]:
        """Return the messages of the run with the answers and entries of this turn, and the open calls."""
        open_ones = self._open_calls()
        if not open_ones:
            return messages + _answers_of(self.calls, ()), []
        waiting = [open_call(call.index, call.message, call.agent.name, entry or {}) for call, entry in open_ones]
        entries = [(call, entry) for call, entry in open_ones if entry]
        return self._with_entries(messages, entries) + _answers_of(self.calls, dict(open_ones)), waiting

    @property
    def end(self) -> TurnEnd:
        """The end of the turn, if the run stops now. After `finish`, the end of the finished turn."""
        turn = self.as_stopped() if self.calls else Turn(self._finished)
        end, open_ones = TurnEnd({}, [], {}, [], []), dict(turn._open_calls())
        answers = iter(_answers_of(turn.calls, open_ones))
        for call in turn.calls:
            index = call.index
            if call not in open_ones:
                end.answers[index] = next(answers)
            else:
                end.open_calls.append(index)
                if entry := open_ones[call]:
                    end.waiting[index] = entry
                    if turn._recorded.get(index) == entry:
                        end.kept.append(index)
            if _is_unknown(call):
                end.unknown.append(index)
        return end

    def _open_calls(self) -> list[tuple[Call, Entry | None]]:
        """Return the open calls, each with its entry for the history if it waits."""
        if not (open_set := self.calls.open_calls()):
            return []
        # The run may not have reached a call with a decision. Such a call keeps its old entry.
        return [
            (call, self._entry_of(call) or self._recorded.get(call.index)) for call in self.calls if call in open_set
        ]

    def _with_entries(self, messages: list[Message], entries: Sequence[tuple[Call, Entry]]) -> list[Message]:
        if messages and entries:  # the last message of this run contains the calls
            return [*messages[:-1], {**messages[-1], WAITING: [entry for _, entry in entries]}]
        # After a resume, an earlier message contains the calls, and a run never changes earlier messages. So an additional
        # tool message contains the new entry. It answers no call.
        new = [(call, entry) for call, entry in entries if self._recorded.get(call.index) != entry]
        return messages + [{**tool_message(call.message, entry["reason"]), WAITING: [entry]} for call, entry in new]

    def _entry_of(self, call: Call) -> Entry | None:
        # A call without a decision keeps the entry of the earlier run.
        recorded = None if call.decision else self._recorded.get(call.index)
        return _entry_of(call) if recorded is None else recorded


def calls_of(
    messages: Iterable[Message], agent: Agent, tools: Mapping[str, Tool[..., Any]], *, first: int = 0
) -> TurnCalls:
    """Return the calls of an assistant message, with the tools of the agent that made them. `first`: the position of the first."""
    calls = [
        # A call of another type ("custom") never runs a function, even if a tool has its name.
        Call(message, position, agent, tools.get(call_name(message)) if message.get("function") else None)
        for position, message in enumerate(messages, first)
    ]
    return TurnCalls(calls)


def resumed_turn(
    tail: Sequence[Message],
    unanswered: Sequence[Message],
    agent: Agent,
    tools: Mapping[str, Tool[..., Any]],
    resume: Resume,
    *,
    concurrent: bool = True,
) -> Turn:
    """Return the turn of the calls without an answer, with the decisions applied.

    `tail`: the end of the history, from the message with the calls. Raises ConfigurationError for a decision that has no open
    call, does not suit its call, or would be lost.
    """
    are_open = set(map(id, unanswered))
    calls = TurnCalls(call for call in calls_of(tail[0]["tool_calls"], agent, tools) if id(call.message) in are_open)
    entries = waiting_entries(tail)
    decide(calls, resume, entries)
    check_order(calls, entries or {}, concurrent=concurrent)
    return Turn(calls, entries)


def check_order(calls: Sequence[Call], waiting: Container[int], *, concurrent: bool = True) -> None:
    """Raise ConfigurationError if the decision on a waiting call would be lost, because the run stops at an earlier call.

    The history must not approve a call, so it cannot keep the decision for a later run. `waiting`: the positions of the calls that
    need a decision; other open calls run later without one.
    """
    undecided: Call | None = None
    for group in plan(calls, concurrent=concurrent, may_hold=not concurrent):
        if undecided is None:
            if any(map(_may_hand_off, group)):  # then no call keeps the turn open
                return
            undecided = next((call for call in group if call.hold is not None), None)
        elif (lost := next((call for call in group if call.decision and call.index in waiting), None)) is not None:
            raise ConfigurationError(
                f"resume decides on the call {named_ids([lost.id])}, but not on the earlier call {named_ids([undecided.id])}, and "
                "the two do not run together; decide on both, or on the earlier call first"
            )


def _may_hand_off(call: Call) -> bool:
    tool = call.tool
    return call.hold is None and tool is not None and not tool.is_handoff and tool.effects.may_hand_off


# --- finished calls ---------------------------------------------------------------------------------------------------


def _answers_of(calls: TurnCalls, open_calls: Container[Call] | None = None) -> list[Message]:
    """Return the current tool messages of the calls, in call order. `open_calls`: those of `calls`, if they are known."""
    messages: list[Message] = []
    previous: Agent | None = None
    for call in calls:
        if outcome := call.outcome:
            content, agent = outcome.content, outcome.result and outcome.result.agent
            if agent is not None and previous is not None and agent is not previous:
                # The message of the earlier handoff is already recorded. So this message names the handoff that it replaces.
                content = with_note(content, f" (replaces the handoff to {previous.name})")
            if call.tool is not None and call.tool.is_answer and content == ACCEPTED:
                content = _accepted(calls)
            messages.append(_message(call, content) if call.decision else tool_message(call.message, content))
            previous = agent or previous
            continue
        open_calls = calls.open_calls() if open_calls is None else open_calls
        if call not in open_calls:
            messages.append(_message(call, _text_without_outcome(call)))
    return messages


def _is_unknown(call: Call) -> bool:
    """Return whether the outcome is not known, or would not be known if the call were closed now."""
    if (outcome := call.outcome) is not None:
        return outcome.unknown or outcome.still_running
    return call.has_started or call.has_started_inside


def _text_without_outcome(call: Call) -> str:
    if not call.has_started:
        return OUTCOME_UNKNOWN if call.has_started_inside else INTERRUPTED
    was_abandoned = call.tool is not None and call.tool.abandon_on_cancel
    return OUTCOME_UNKNOWN + (STILL_RUNNING if was_abandoned else "")


def _message(call: Call, content: str | list[Part]) -> Message:
    """Return the tool message. It contains the changed arguments of a user, because the assistant message never changes.

    The message of a call inside code has no such note: the code reads it when it is replayed, and no model does.
    """
    if call.parent is None and call.decision is not None and call.decision.arguments is not None:
        changed = json.dumps(dict(call.replaced or call.decision.arguments), ensure_ascii=False)
        note = f"(run with arguments changed by the user: {changed})"
        content = f"{note}\n{content}" if isinstance(content, str) else [text_part(note), *content]
    return tool_message(call.message, content)


def _accepted(calls: TurnCalls) -> str:
    """Return the content for a valid call of `final_answer`. It ends the run if all calls have ended, without a handoff."""
    if (target := calls.handed_to()) is not None:
        return f"not the answer: the conversation was handed over to {target.name}"
    if any(call.outcome is None for call in calls):
        return f"not the answer: another call has not ended; call {FINAL_ANSWER} again"
    return ACCEPTED


def _entry_of(call: Call) -> Message | None:
    """Return the entry of a waiting call for the history; None for another call."""
    if call.hold is None:
        return None
    decided = call.decision or UNDECIDED
    entry: Message = {"index": call.index, "reason": call.hold.reason}
    data = call.hold.data
    if isinstance(call.hold, NeedsApproval):
        entry["approval"] = True
        data = decided.data  # the data of a question that the user has already answered
        if decided.is_answered:
            entry["answer"] = as_json(decided.answer)
    if data is not None:
        entry["data"] = data
    if decided.arguments is not None:
        entry["arguments"] = dict(decided.arguments)
    if call.replaced is not None:
        entry["replaced"] = dict(call.replaced)
    if call.tool is not None and call.tool.version is not None:
        entry["version"] = call.tool.version()
    return entry

"""The current turn of a run: its tool calls, their answers, and the calls that wait for a decision of a user.

A run may stop in the middle of a turn. So the answers, the context changes and the handoff are valid at any moment. No I/O.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from aswarm._tools.conversion import valid_arguments
from aswarm._tools.tool import NeedsApproval, Tool, standing_hold
from aswarm._values.agent import Agent, UnknownCall
from aswarm._values.content import Part, text_part
from aswarm._values.decisions import Decisions, OpenCall, as_json, open_call, waiting_entries
from aswarm._values.messages import INTERRUPTED, OUTCOME_UNKNOWN, STILL_RUNNING, WAITING, Message, tool_message
from aswarm._values.output import ACCEPTED, FINAL_ANSWER

from .plan import Decided, ToolCall, calls_of
from .resuming import decide

Entry: TypeAlias = Mapping[str, Any]


class Turn:
    """The calls of the current turn of a run.

    `calls`: the calls of the last completion, or the open calls of an earlier run; empty after the turn.
    `waits`: whether the turn stays open, because a call waits for a decision.
    `unknown_calls`: the calls of earlier turns whose outcome is not known.
    """

    def __init__(self, calls: list[ToolCall], recorded: Mapping[int, Entry] | None = None) -> None:
        """Start a turn with these calls. `recorded`: the entries of waiting calls in the history, by position."""
        self.calls = calls
        self.waits = False
        self.unknown_calls: list[UnknownCall] = []
        self._has_started = False
        self._recorded: Mapping[int, Entry] = recorded or {}

    def finish_group(self, group: Iterable[ToolCall]) -> bool:
        """Mark the calls of a group as merged. Return False if the turn stops, because a call waits."""
        has_hold = False
        for call in group:
            call._merged = True
            if call._hold is not None:
                has_hold = True
        if has_hold and _waits(self.calls):
            self.waits, self.calls = True, [*map(reopened, self.calls)]
            return False
        return True

    @property
    def has_started(self) -> bool:
        """Whether a function has started: in this turn, in an earlier turn of the run, or in an inner run of a waiting call."""
        if not self._has_started:
            for call in self.calls:
                if call._started or call._has_started_inside:
                    return True
        return self._has_started

    @property
    def lost_decisions(self) -> list[str]:
        """The ids of the decided calls that the run did not reach, because another call waits."""
        return [call.id for call in self.calls if call._decided and not (call._outcome or call._started or call._hold)]

    def fail_handoffs(self, reason: str) -> None:
        """Remove the handoffs of the turn. The recorded results do not change; the messages of the calls get the reason."""
        for call in self.calls:
            if (outcome := call._outcome) and outcome.result and outcome.agent:
                content = _with_note(outcome.content, f" ({reason})")
                result = outcome.result.model_copy(update={"agent": None})
                call._outcome = dataclasses.replace(outcome, content=content, result=result)

    def finish(self) -> list[Message]:
        """Finish the turn. Return its tool messages in call order."""
        calls = self.calls
        self.unknown_calls += unknown_calls_of(calls)
        self._has_started = self._has_started or self.has_started
        self.calls, self._recorded = [], {}
        return _answers_of(calls)

    # --- a run that stops now ---

    def as_stopped(self) -> Turn:
        """Return the turn as it is if the run stops now. If a call waits, some other calls are open again too."""
        return Turn([*map(reopened, self.calls)], self._recorded) if _waits(self.calls) else self

    def added_to(self, messages: list[Message]) -> tuple[list[Message], list[OpenCall]]:
        """Return the messages of the run with the answers and entries of this turn, and the open calls."""
        open_set = _open_set(self.calls)
        # The run may not have reached a call with a decision. Such a call keeps its old entry.
        open_ones = [
            (call, self._entry_of(call) or self._recorded.get(call.index)) for call in self.calls if call in open_set
        ]
        waiting = [open_call(call.index, call.message, call.agent.name, entry or {}) for call, entry in open_ones]
        entries = [(call, entry) for call, entry in open_ones if entry]
        return self._with_entries(messages, entries) + _answers_of(self.calls), waiting

    def _with_entries(self, messages: list[Message], entries: Sequence[tuple[ToolCall, Entry]]) -> list[Message]:
        if messages and entries:  # the last message of this run contains the calls
            return [*messages[:-1], {**messages[-1], WAITING: [entry for _, entry in entries]}]
        # After a resume, an earlier message contains the calls, and a run never changes earlier messages. So an additional
        # tool message contains the new entry. It answers no call.
        new = [(call, entry) for call, entry in entries if self._recorded.get(call.index) != entry]
        return messages + [{**tool_message(call.message, entry["reason"]), WAITING: [entry]} for call, entry in new]

    def _entry_of(self, call: ToolCall) -> Entry | None:
        # A call without a decision keeps the entry of the earlier run.
        recorded = None if call._decided else self._recorded.get(call.index)
        return _entry_of(call) if recorded is None else recorded


def resumed_turn(
    tail: Sequence[Message],
    unanswered: Sequence[Message],
    agent: Agent,
    tools: Mapping[str, Tool[..., Any]],
    resume: bool | Decisions,
) -> Turn:
    """Return the turn of the calls without an answer, with the decisions applied.

    `tail`: the end of the history, from the message with the calls. Raises ConfigurationError for a decision that has no open
    call, or does not suit its call.
    """
    are_open = set(map(id, unanswered))
    calls = [call for call in calls_of(tail[0]["tool_calls"], agent, tools) if id(call.message) in are_open]
    entries = waiting_entries(tail)
    decide(calls, resume, entries)
    return Turn(calls, entries)


# --- finished calls ---------------------------------------------------------------------------------------------------


def changes_of(calls: Iterable[ToolCall]) -> dict[str, Any]:
    """Return the context changes of finished calls that are not merged yet. The last change in call order wins."""
    changes: dict[str, Any] = {}
    for call in calls:
        if call._outcome and call._outcome.result and not call._merged:
            changes.update(call._outcome.result.context_variables)
    return changes


def handed_to(calls: Iterable[ToolCall]) -> Agent | None:
    """Return the agent of the last handoff in call order, or None."""
    target: Agent | None = None
    for call in calls:
        if (outcome := call._outcome) and (agent := outcome.agent):
            target = agent
    return target


def unknown_calls_of(calls: list[ToolCall]) -> list[UnknownCall]:
    """Return the calls whose outcome is not known.

    A call without an outcome is in this list if its function has started. It is also in the list if a function of an inner
    run has started and the call cannot be resumed. The calls inside it come first.
    """
    unknown_calls: list[UnknownCall] = []
    open_set: set[ToolCall] | None = None
    for call in calls:
        if call._unknown_inside:
            unknown_calls += call._unknown_inside
        if (outcome := call._outcome) is not None:
            if outcome.unknown or outcome.still_running:
                unknown_calls.append(call._as_unknown)
            continue
        if not (is_unknown := call._started) and call._has_started_inside:
            open_set = _open_set(calls) if open_set is None else open_set
            is_unknown = call not in open_set
        if is_unknown:
            unknown_calls.append(call._as_unknown)
    return unknown_calls


def _answers_of(calls: list[ToolCall]) -> list[Message]:
    """Return the current tool messages of the calls, in call order."""
    messages: list[Message] = []
    previous: Agent | None = None
    open_set: set[ToolCall] | None = None
    for call in calls:
        if outcome := call._outcome:
            content, agent = outcome.content, outcome.agent
            if agent is not None and previous is not None and agent is not previous:
                # The message of the earlier handoff is already recorded. So this message names the handoff that it replaces.
                content = _with_note(content, f" (replaces the handoff to {previous.name})")
            if call.tool is not None and call.tool.is_answer and content == ACCEPTED:
                content = _accepted(calls)
            messages.append(_message(call, content) if call._decided else tool_message(call.message, content))
            previous = agent or previous
            continue
        open_set = _open_set(calls) if open_set is None else open_set
        if call not in open_set:
            messages.append(_message(call, _text_without_outcome(call)))
    return messages


def _with_note(content: str | list[Part], note: str) -> str | list[Part]:
    return content + note if isinstance(content, str) else [*content, text_part(note)]


def _text_without_outcome(call: ToolCall) -> str:
    if not call._started:
        return OUTCOME_UNKNOWN if call._has_started_inside else INTERRUPTED
    was_abandoned = call.tool is not None and call.tool.abandon_on_cancel
    return OUTCOME_UNKNOWN + (STILL_RUNNING if was_abandoned else "")


def _message(call: ToolCall, content: str | list[Part]) -> Message:
    """Return the tool message. It contains the changed arguments of a user, because the assistant message never changes.

    The message of a call inside code has no such note: the code reads it when it is replayed, and no model does.
    """
    if call.parent is None and call._decided is not None and call._decided.arguments is not None:
        changed = json.dumps(dict(call._replaced or call._decided.arguments), ensure_ascii=False)
        note = f"(run with arguments changed by the user: {changed})"
        content = f"{note}\n{content}" if isinstance(content, str) else [text_part(note), *content]
    return tool_message(call.message, content)


def _accepted(calls: list[ToolCall]) -> str:
    """Return the content for a valid call of `final_answer`. It ends the run if all calls have ended, without a handoff."""
    if (target := handed_to(calls)) is not None:
        return f"not the answer: the conversation was handed over to {target.name}"
    if any(call._outcome is None for call in calls):
        return f"not the answer: another call has not ended; call {FINAL_ANSWER} again"
    return ACCEPTED


# --- open calls -------------------------------------------------------------------------------------------------------


def _open_set(calls: list[ToolCall]) -> set[ToolCall]:
    """Return the calls that get no answer, so that a later run can resume them.

    After a handoff in the same turn, no call stays open, because the new agent may not have its function.
    """
    return set() if handed_to(calls) else _resumable(calls)


def _resumable(calls: list[ToolCall]) -> set[ToolCall]:
    """Return the calls that have not started, or are repeatable.

    Ids may repeat. A call is excluded if a later call with the same id and name has an answer: a resumed run would give that
    answer to the earlier call.
    """
    resumable: set[ToolCall] = set()
    answered: set[tuple[str, str]] = set()
    for call in reversed(calls):
        key = (call.id, call.name)
        if call._outcome or key in answered or (call._started and not call.is_repeatable):
            answered.add(key)
        else:
            resumable.add(call)
    return resumable


def _waits(calls: list[ToolCall]) -> bool:
    """Return whether a waiting call keeps the turn open.

    After a handoff by a function, no call keeps it open: the function has run, so the handoff cannot be repeated later.
    """
    held = [call for call in calls if call._hold is not None]
    if not held:
        return False
    for call in calls:
        if call._outcome and call._outcome.agent and not (call.tool and call.tool.is_handoff):
            return False
    return not _resumable(calls).isdisjoint(held)


def reopened(call: ToolCall) -> ToolCall:
    """Return the call for a turn that stays open. If the call must change, return a new object.

    A handoff to an agent is open again, because the waiting calls must belong to the active agent. If the run has not reached
    a call that needs a decision, the call waits too. So the user can decide on all calls at once.
    """
    is_denied = call._outcome is not None and call._outcome.agent is None
    if call.tool is not None and call.tool.is_handoff and not is_denied:
        return dataclasses.replace(call, _outcome=None, _started=False)
    is_new = call._outcome is None and not call._started and call._decided is None and call._hold is None
    if is_new and call.tool is not None and (hold := standing_hold(call.tool)) and _can_be_called(call, call.tool):
        return dataclasses.replace(call, _hold=hold)
    return call


def _can_be_called(call: ToolCall, tool: Tool[..., Any]) -> bool:
    """Return whether the arguments are valid. A call with invalid arguments fails, so no user has to decide."""
    try:
        valid_arguments(tool, call.arguments)
    except Exception:  # noqa: BLE001 - a validator of the user may raise anything; the call will report it later
        return False
    return True


def _entry_of(call: ToolCall) -> Message | None:
    """Return the entry of a waiting call for the history; None for another call."""
    if call._hold is None:
        return None
    decided = call._decided or Decided()
    entry: Message = {"index": call.index, "reason": call._hold.reason}
    data = call._hold.data
    if isinstance(call._hold, NeedsApproval):
        entry["approval"] = True
        data = decided.data  # the data of a question that the user has already answered
        if decided.is_answered:
            entry["answer"] = as_json(decided.answer)
    if data is not None:
        entry["data"] = data
    if decided.arguments is not None:
        entry["arguments"] = dict(decided.arguments)
    if call._replaced is not None:
        entry["replaced"] = dict(call._replaced)
    return entry

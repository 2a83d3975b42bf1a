"""What the calls of a turn have left so far: answers, changes of the context, a handoff, and calls that are still open.

Pure functions of the calls, right at any moment of the turn.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from aswarm._agent import Agent, UnknownCall
from aswarm._content import Part, text_part
from aswarm._decisions import as_json
from aswarm._messages import INTERRUPTED, OUTCOME_UNKNOWN, STILL_RUNNING, WAITING, Message, tool_message
from aswarm._output import ACCEPTED, FINAL_ANSWER
from aswarm._tools.tool import NeedsApproval, standing_hold

from .plan import Decided, ToolCall


def changes_of(calls: Iterable[ToolCall]) -> dict[str, Any]:
    """The context changes of finished calls that are not merged yet; the last in call order wins."""
    changes: dict[str, Any] = {}
    for call in calls:
        if call.outcome and call.outcome.result and not call.merged:
            changes.update(call.outcome.result.context_variables)
    return changes


def handed_to(calls: Iterable[ToolCall]) -> Agent | None:
    """The agent that takes over: of several handoffs the last in call order."""
    target: Agent | None = None
    for call in calls:
        if call.outcome and (agent := call.outcome.agent):
            target = agent
    return target


def unknown_calls_of(calls: Iterable[ToolCall]) -> list[UnknownCall]:
    """The calls that began and have no outcome, and those whose outcome says that it is not known."""
    found: list[UnknownCall] = []
    for call in calls:
        outcome = call.outcome
        if call.started if outcome is None else outcome.unknown or outcome.still_running:
            found.append(call.as_unknown)
    return found


def answers_of(calls: list[ToolCall]) -> list[Message]:
    """The tool messages of the calls, in call order, as of now."""
    messages: list[Message] = []
    previous: Agent | None = None
    open_ones: set[ToolCall] | None = None
    for call in calls:
        if call.outcome:
            note = _replaced(call.outcome.agent, previous)
            content = _with_note(call.outcome.content, note) if note else call.outcome.content
            if call.tool is not None and call.tool.is_answer and content == ACCEPTED:
                content = _taken(calls)
            messages.append(_message(call, content) if call.decided else tool_message(call.message, content))
            previous = call.outcome.agent or previous
            continue
        open_ones = _open_set(calls) if open_ones is None else open_ones
        if call not in open_ones:
            messages.append(_message(call, _text_without_outcome(call)))
    return messages


def _open_set(calls: list[ToolCall]) -> set[ToolCall]:
    """The calls that get no answer, so that they can be resumed.

    No call stays open once a handoff of the same turn has finished: the new agent may not even have that function.
    """
    return set() if handed_to(calls) else _resumable(calls)


def _resumable(calls: list[ToolCall]) -> set[ToolCall]:
    """The calls that never started, or are repeatable.

    But no call before an answered one of the same id and name: a resumed run would take that answer for this call's.
    """
    found: set[ToolCall] = set()
    answered: set[tuple[str, str]] = set()
    for call in reversed(calls):
        key = (call.id, call.name)
        if call.outcome or key in answered or (call.started and not call.is_repeatable):
            answered.add(key)
        else:
            found.add(call)
    return found


def _text_without_outcome(call: ToolCall) -> str:
    if not call.started:
        return INTERRUPTED
    was_left = call.tool is not None and call.tool.abandon_on_cancel
    return OUTCOME_UNKNOWN + (STILL_RUNNING if was_left else "")


def _message(call: ToolCall, content: str | list[Part]) -> Message:
    """The tool message; it says so if the user has changed the arguments: the assistant message is never rewritten."""
    if call.decided is not None and call.decided.arguments is not None:
        changed = json.dumps(dict(call.decided.arguments), ensure_ascii=False)
        note = f"(run with arguments changed by the user: {changed})"
        content = f"{note}\n{content}" if isinstance(content, str) else [text_part(note), *content]
    return tool_message(call.message, content)


def _taken(calls: list[ToolCall]) -> str:
    """What the model is told of a valid call of `final_answer`: it ends a run only if its turn ends, without a handoff."""
    if (target := handed_to(calls)) is not None:
        return f"not the answer: the conversation was handed over to {target.name}"
    if any(call.outcome is None for call in calls):
        return f"not the answer: another call has not ended; call {FINAL_ANSWER} again"
    return ACCEPTED


def _with_note(content: str | list[Part], note: str) -> str | list[Part]:
    return content + note if isinstance(content, str) else [*content, text_part(note)]


def _replaced(agent: Agent | None, previous: Agent | None) -> str:
    # Recorded results never change, so the later handoff says which one it replaces.
    if agent is None or previous is None or agent is previous:
        return ""
    return f" (replaces the handoff to {previous.name})"


# --- calls that wait for a decision -----------------------------------------------------------------------------------


def open_calls_of(calls: list[ToolCall]) -> list[ToolCall]:
    """The calls that have no answer and can be resumed, in call order."""
    open_ones = _open_set(calls)
    return [call for call in calls if call in open_ones]


def waits(calls: list[ToolCall]) -> bool:
    """Whether the turn stays open because a call waits. A function that has handed off has ended that: its effect stays."""
    held = [call for call in calls if call.hold is not None]
    return bool(held) and not any(map(_has_handed_off, calls)) and not _resumable(calls).isdisjoint(held)


def kept_open(calls: list[ToolCall]) -> list[ToolCall]:
    """The calls of a turn that stays open. A call that differs from the one before is a new object.

    Handoffs to agents are open again, because the calls that wait must belong to the active agent. A call that the run does
    not reach any more waits too if it needs a decision, so that a user is asked about all calls at once.
    """
    return [_kept_open(call) for call in calls]


def _kept_open(call: ToolCall) -> ToolCall:
    is_denied = call.outcome is not None and call.outcome.agent is None
    if call.tool is not None and call.tool.is_handoff and not is_denied:
        return dataclasses.replace(call, outcome=None, started=False)
    is_new = call.outcome is None and not call.started and call.decided is None and call.hold is None
    if is_new and call.tool is not None and (hold := standing_hold(call.tool)):
        return dataclasses.replace(call, hold=hold)
    return call


def _has_handed_off(call: ToolCall) -> bool:
    is_ready = call.tool is not None and call.tool.is_handoff
    return call.outcome is not None and call.outcome.agent is not None and not is_ready


def entry_of(call: ToolCall) -> Message | None:
    """What the history records of a call that waits; None for another one."""
    if call.hold is None:
        return None
    decided = call.decided or Decided()
    entry: Message = {"index": call.position, "reason": call.hold.reason}
    data = call.hold.data
    if isinstance(call.hold, NeedsApproval):
        entry["approval"] = True
        data = decided.data  # of the question that was answered before
        if decided.is_answered:
            entry["answer"] = as_json(decided.answer)
    if data is not None:
        entry["data"] = data
    if decided.arguments is not None:
        entry["arguments"] = dict(decided.arguments)
    return entry


def waiting_message(call: ToolCall, entry: Mapping[str, Any]) -> Message:
    """A tool message that is no answer: what a call of an earlier run waits for now."""
    return {**tool_message(call.message, entry["reason"]), WAITING: [entry]}

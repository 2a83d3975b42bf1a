"""The questions of a served agent to the user of its client: whether a call may run, and the question of a function.

Decides the forms, the decision that an answer means, and the data of a run that the client keeps until it answers. Values only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcp.types import ElicitRequestFormParams, ElicitResult, InputResponses

from aswarm._decisions import Answer, Decision, Deny, OpenCall, waiting, waiting_entries
from aswarm._json import is_json
from aswarm._messages import Message
from aswarm._text import one_line
from aswarm._tools.tool import RUNS_ELSEWHERE

Questions = Mapping[str, ElicitRequestFormParams]
_SHOWN = 2000  # characters of a call in a question
_APPROVE = {"type": "boolean", "title": "Run it", "description": "Whether the call may run."}
_REASON = {"type": "string", "title": "Why not", "description": "What the agent is told if the call may not run."}
_ANSWER = {"type": "string", "title": "Answer", "description": "The answer to the question."}


@dataclass(frozen=True, slots=True)
class PausedRun:
    """A run that waits for decisions. `agent`: the name of the active agent."""

    agent: str
    messages: list[Message]
    context_variables: dict[str, Any]

    @property
    def questions(self) -> Questions:
        """A form for each call that waits, by its index; empty if no form can answer one of the calls."""
        entries = waiting_entries(self.messages) or {}
        calls = [call for call in waiting(self.messages) if call.reason is not None]
        is_approval = {call.index: bool(entries[call.index].get("approval")) for call in calls}
        if not all(is_approval[call.index] or _wants_a_text(call) for call in calls):
            return {}
        return {str(call.index): _form(call, is_approval=is_approval[call.index]) for call in calls}

    def as_text(self) -> str | None:
        """The run as JSON; None if its context variables are not JSON."""
        kept = [self.agent, self.messages, self.context_variables]
        return json.dumps(kept) if is_json(kept) else None

    @classmethod
    def from_text(cls, text: str) -> PausedRun:
        """The run of `as_text`."""
        return cls(*json.loads(text))


def _wants_a_text(call: OpenCall) -> bool:
    # A question with data has a form of its own for the answer. The data of an agent as a tool is a whole run.
    return call.data is None and call.reason != RUNS_ELSEWHERE


def _form(call: OpenCall, *, is_approval: bool) -> ElicitRequestFormParams:
    properties = {"approve": _APPROVE, **({"reason": _REASON} if is_approval else {"answer": _ANSWER})}
    shown = one_line(f"{call.name}({call.arguments})", _SHOWN)
    return ElicitRequestFormParams(
        message=f"{call.agent}: {call.reason}: {shown}",
        requested_schema={"type": "object", "properties": properties, "required": ["approve"]},
    )


def decisions_of(questions: Questions, answers: InputResponses | None) -> dict[str, Decision]:
    """The decisions of the user, by the index of the call. A form that the user has cancelled decides nothing."""
    given = {key: each for key, each in (answers or {}).items() if key in questions and isinstance(each, ElicitResult)}
    return {key: _decision(each) for key, each in given.items() if each.action != "cancel"}


def _decision(answer: ElicitResult) -> Decision:
    fields: Mapping[str, str | int | float | bool | Sequence[str] | None] = answer.content or {}
    if answer.action == "decline" or fields.get("approve") is not True:
        return Deny(str(fields.get("reason") or ""))
    return Answer(fields["answer"]) if fields.get("answer") else True

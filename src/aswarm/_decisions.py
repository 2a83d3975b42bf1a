"""Calls that wait for a decision, and the decisions: what a user is asked, and what the user may say.

Values only. What a decision does to a run is decided in `_run.resuming`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ._json import is_array, is_json, is_object, jsonable
from ._messages import WAITING, Message, call_arguments, call_name, last_head, normalize, open_calls


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call without an answer, which `resume=` decides on.

    `index`: its position in the assistant message. `id` and `name`: those of the call. `arguments`: JSON text as the model
    sent it, or as a user has changed it. `agent`: the name of the agent that made the call. `reason`: what the user is
    asked. It is None for a call that only stands behind another one that waits, or that the run was told not to execute.
    `data`: the JSON data of its `Hold`, or None. `answer`: what a user has answered to the question of a call that waits
    for an approval now; None without an answer.
    """

    index: int
    id: str
    name: str
    arguments: str
    agent: str
    reason: str | None = None
    data: Any = None
    answer: Any = None


@dataclass(frozen=True, slots=True)
class Approve:
    """The decision to run the call.

    `arguments`: run it with these in place of the model's; the model is told of the change. `expected`: the arguments that
    the user has seen, as a dict. If the call has others, the run raises ConfigurationError and nothing runs.
    """

    arguments: Mapping[str, Any] | None = None
    expected: Mapping[str, Any] | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Deny:
    """The decision not to run the call. The model is told the `reason`."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to what the call asked for, as JSON data.

    A function that raised `Hold` runs again and finds it in `current_call().answer`. If its tool has `approve`, the call
    first waits for the approval of what it would do now. For an external tool the answer is the result. For an agent as a
    tool it is the decisions about the calls of that agent.

    `data`: the answer. `expected`: as of `Approve`.
    """

    data: Any
    expected: Mapping[str, Any] | None = field(default=None, kw_only=True)


Decision: TypeAlias = bool | str | Approve | Deny | Answer | Mapping[str, Any]
"""What a user may say about a call that waits.

True is `Approve()`, False is `Deny()`. A str is told to the model as the result, and nothing runs. A mapping is the JSON
form: `{"approve": {"arguments": {...}}}`, `{"deny": "reason"}` or `{"answer": data}`; any other mapping is `Answer(mapping)`.
A call that asks for an approval takes no `Answer`, and an `Answer` is no approval.
"""
# The type of a key is Any: a mapping is invariant in it, and in a union of mappings mypy does not find the type of
# `{"a": True, "b": Deny("no")}`.
Decisions: TypeAlias = Mapping[Any, Decision]
"""Decisions about calls, by the id of each call, or by its index where ids are equal.

As JSON has no numbers as keys, "0" is index 0 where no call has that id.
"""


def waiting(messages: Sequence[Any]) -> list[OpenCall]:
    """The calls at the end of a stored history that no tool message answers, in call order.

    Raises ConfigurationError if `messages` is not a history, as a run does.
    """
    history = normalize(messages)
    head: Message = history[last_head(history)] if history else {}
    entries = waiting_entries(history) or {}
    positions = {id(call): position for position, call in enumerate(head.get("tool_calls") or ())}
    return [
        open_call(positions[id(call)], call, str(head.get("sender") or ""), entries.get(positions[id(call)], {}))
        for call in open_calls(history)
    ]


def open_call(position: int, call: Message, agent: str, entry: Mapping[str, Any]) -> OpenCall:
    """The call as a user sees it. `entry`: what the history records of it, empty if nothing."""
    changed = entry.get("arguments")
    return OpenCall(
        position,
        str(call["id"]),
        call_name(call),
        call_arguments(call) if changed is None else json.dumps(changed, ensure_ascii=False),
        agent,
        entry.get("reason"),
        entry.get("data"),
        entry.get("answer"),
    )


def waiting_entries(messages: Sequence[Message]) -> dict[int, Mapping[str, Any]] | None:
    """What the history records of the calls that wait at its end, by position; None if it records nothing."""
    recorded = [each[WAITING] for each in messages[last_head(messages) :] if is_array(each.get(WAITING))]
    return {entry["index"]: entry for entries in recorded for entry in entries if _is_entry(entry)} or None


def _is_entry(entry: Any) -> bool:
    if not (is_object(entry) and isinstance(entry.get("index"), int) and isinstance(entry.get("reason"), str)):
        return False
    arguments = entry.get("arguments", {})
    return is_object(arguments) and is_json(arguments)


def as_json(decision: Any) -> Any:
    """A decision, or the data of one, in its JSON form."""
    match decision:
        case Approve(arguments, expected=expected):
            return {"approve": {"arguments": jsonable(arguments), "expected": jsonable(expected)}}
        case Deny(reason):
            return {"deny": reason}
        case Answer(data):
            return {"answer": as_json(data)}
        case _:
            return (
                {str(key): as_json(each) for key, each in decision.items()}
                if is_object(decision)
                else jsonable(decision)
            )

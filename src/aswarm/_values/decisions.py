"""Tool calls that wait for a decision of a user, and the decisions.

The module only defines values. `_run.resuming` applies decisions to a run.

Security: Nothing in a history or in an answer of a model approves a call; only `resume=` does.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeGuard

from .errors import ConfigurationError
from .json import is_array, is_json, is_object, jsonable, shown
from .messages import (
    STARTED_INSIDE,
    WAITING,
    Message,
    call_arguments,
    call_name,
    has_started_inside,
    last_head,
    normalize,
    unanswered_calls,
)

# The reason of a waiting call of an external tool.
RUNS_ELSEWHERE = "runs outside of this program"
_SHOWN = 60  # the length of a value in an error text


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call without an answer, for a decision in `resume=`.

    Args:
        index: The position of the call in the assistant message.
        id: The id of the call.
        name: The name of the function.
        arguments: The JSON text, as the model sent it, or as a user or a guard has changed it.
        agent: The name of the agent that made the call.
        reason: The question to the user. None if there is no question: the call only comes after a waiting call, or the run
            had `execute_tools=False`.
        data: The JSON data of the `Hold`, or None. For an agent as a tool: a dict with the name of the `agent`, and with the
            open calls of its run as `waiting`. Each open call is a dict with the fields of an `OpenCall`.
        answer: The user's earlier answer, if the call has asked a question first, and now waits for an approval; or None.
    """

    index: int
    id: str
    name: str
    arguments: str
    agent: str
    reason: str | None = None
    data: Any = None
    answer: Any = None


@dataclass(frozen=True, slots=True, repr=False)
class AllApproved:
    """The value of `Approve.all()`, for `resume=`: all open calls whose function is in this program are approved."""

    def __repr__(self) -> str:
        return "Approve.all()"


@dataclass(frozen=True, slots=True)
class Approve:
    """The decision to run the call.

    `arguments`: arguments to use instead of the model's arguments. The tool message contains them.
    `expected`: the arguments that the user has seen, as a dict. If the call has other arguments, the run raises
    ConfigurationError, and nothing runs.
    """

    arguments: Mapping[str, Any] | None = None
    expected: Mapping[str, Any] | None = field(default=None, kw_only=True)

    @staticmethod
    def all() -> AllApproved:
        """Approve all open calls: `resume=Approve.all()`. Use it only for a history from storage that you trust."""
        return AllApproved()


@dataclass(frozen=True, slots=True)
class Deny:
    """The decision not to run the call. The tool message contains the `reason`."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to the question of a call, as JSON data.

    A function that raised `Hold` runs again, and reads the answer from `current_call().answer`. If its tool has `approve`, the
    call first waits for an approval. For an external tool, the answer is the result. For an agent as a tool, the answer is a
    mapping with the decisions on the calls of that agent.

    `data`: the answer. `expected`: as for `Approve`.
    """

    data: Any
    expected: Mapping[str, Any] | None = field(default=None, kw_only=True)


Decision: TypeAlias = bool | str | Approve | Deny | Reply | Mapping[str, Any]
"""A decision of a user on a waiting call.

True means `Approve()`, and False means `Deny()`. A str becomes the result of the call, and its function does not run. A
mapping is the JSON form: `{"approve": {"arguments": {...}}}`, `{"deny": "reason"}` or `{"answer": data}`. `"expected": {...}` may
stand next to "arguments" or "answer". Any other mapping is an error. A `Reply` does not approve a call: for a call that waits for an approval, it is an error.
"""
# The type of the keys is Any, because Mapping is invariant in it. With a union of mappings instead, mypy could not infer the
# type of `{"a": True, "b": Deny("no")}`.
Decisions: TypeAlias = Mapping[Any, Decision]
"""A dict of decisions. Its keys are the ids of the calls, or their indexes if several calls have the same id.

A JSON key is always a text, so "0" also means the index 0, if no call has the id "0".
"""


Resume: TypeAlias = bool | Decisions | AllApproved
"""The type of `resume=`.

False: open calls are an error. True: the open calls that need no decision run. A dict: its decisions; an empty dict means True.
`Approve.all()`: all open calls are approved.
"""
_APPROVE_ALL = "approve_all"  # the JSON form of `Approve.all()` in the input of a user


def resume_from_json(data: Any) -> Resume:
    """Return the value of `resume=` from the JSON of a user. Raises ValueError for any other data."""
    if data is True or is_object(data):
        return data
    if data == _APPROVE_ALL:
        return Approve.all()
    example = '{"call_1": true, "call_2": {"deny": "too late"}}'
    raise ValueError(
        f'must be true, "{_APPROVE_ALL}", or an object of decisions by call id, such as {example}, not {shown(data, _SHOWN)}'
    )


def recorded_resume(resume: Resume) -> Any:
    """Return the form of `resume=` in a record: true for `Approve.all()`, and an object without decisions for True.

    Records of older versions have the same form: there, True approved all calls.
    """
    if isinstance(resume, AllApproved):
        return True
    if isinstance(resume, bool):
        return {} if resume else False
    return dict(resume)


def open_calls(messages: Sequence[Any]) -> list[OpenCall]:
    """Return the unanswered calls at the end of a stored history, in call order.

    Raises ConfigurationError for an invalid history, as a run does.
    """
    history = normalize(messages)
    head: Message = history[last_head(history)] if history else {}
    entries = waiting_entries(history) or {}
    positions = {id(call): position for position, call in enumerate(head.get("tool_calls") or ())}
    return [
        open_call(positions[id(call)], call, str(head.get("sender") or ""), entries.get(positions[id(call)], {}))
        for call in unanswered_calls(history)
    ]


def waiting_calls(calls: Iterable[OpenCall]) -> list[OpenCall]:
    """Return the open calls that wait for a person or another program: those with a `reason`."""
    return [call for call in calls if call.reason is not None]


def open_call(position: int, call: Message, agent: str, entry: Mapping[str, Any]) -> OpenCall:
    """Return the call in the form for users. `entry`: the entry of the call in the history, or an empty mapping."""
    changed = entry.get("replaced", entry.get("arguments"))
    return OpenCall(
        position,
        str(call["id"]),
        call_name(call),
        call_arguments(call) if changed is None else json.dumps(changed, ensure_ascii=False),
        agent,
        entry.get("reason"),
        public_data(entry.get("data")),
        entry.get("answer"),
    )


def is_run_inside(data: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the data of a waiting call is the stored form of an inner run; see `public_data`."""
    return is_object(data) and data.keys() >= {"agent", "messages", "context_variables", "removed"}


def public_data(data: Any) -> Any:
    """Return the data of a waiting call in the form for users.

    If the call waits for an inner run, the history stores the messages and context variables of this run. A user gets the open
    calls of the run instead. They are read from the same messages, so after an approval exactly the shown calls run.
    """
    if not is_run_inside(data):
        return data
    try:
        calls = open_calls(data["messages"])
    except (ConfigurationError, RecursionError):  # other code has changed the history; a resume will raise the error
        calls = []
    shown = [{name: getattr(call, name) for name in OpenCall.__slots__} for call in calls]
    return {"agent": data["agent"], "waiting": shown, STARTED_INSIDE: has_started_inside(data)}


def storable_inside(messages: Sequence[Message]) -> list[Message] | None:
    """Return the messages of a run inside a call in the form in which the outer history stores them, as JSON data.

    None if that history would be nested too deeply.
    """
    stored = jsonable([{WAITING: [{"data": {"messages": messages}}]}])
    return stored[0][WAITING][0]["data"]["messages"] if is_array(stored) else None


def waiting_entries(messages: Sequence[Message]) -> dict[int, Mapping[str, Any]] | None:
    """Return the entries of the waiting calls at the end of the history, by position; None if there are none."""
    recorded = [message[WAITING] for message in messages[last_head(messages) :] if is_array(message.get(WAITING))]
    return {entry["index"]: entry for entries in recorded for entry in entries if _is_entry(entry)} or None


def without_old_entries(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of a waiting run with entries only for its open calls, all on the message with the calls.

    An inner run is stored again after each decision. The entry of a decided call may itself contain an inner run, so old
    entries would make the stored data larger each time.
    """
    entries, open_ones = waiting_entries(messages) or {}, open_calls(messages)
    kept = [
        {key: value for key, value in message.items() if key != WAITING}
        for message in messages
        if message["role"] != "tool" or WAITING not in message
    ]
    kept[last_head(kept)][WAITING] = [entries[call.index] for call in open_ones if call.index in entries]
    return kept


def _is_entry(entry: Any) -> bool:
    if not (is_object(entry) and isinstance(entry.get("index"), int) and isinstance(entry.get("reason"), str)):
        return False
    changed = [entry[key] for key in ("arguments", "replaced") if key in entry]
    return all(is_object(arguments) and is_json(arguments) for arguments in changed)


def as_json(decision: Any) -> Any:
    """Return a decision, or its data, in JSON form."""
    match decision:
        case Approve(arguments, expected=expected):
            return {"approve": {"arguments": jsonable(arguments), "expected": jsonable(expected)}}
        case Deny(reason):
            return {"deny": jsonable(reason)}
        case Reply(data, expected=expected):
            return {"answer": as_json(data), **({} if expected is None else {"expected": jsonable(expected)})}
        case _ if is_object(decision):
            return {str(key): as_json(item) for key, item in decision.items()}
        case _:
            return jsonable(decision)


@dataclass(frozen=True, slots=True)
class CallDecision:
    """The decisions of users on a call, in this run and earlier ones.

    Args:
        arguments: The arguments that a user has set in place of the model's arguments, or None.
        answer: The data of `Reply`, if `is_answered`.
        is_answered: Whether a user has answered the question of the call.
        data: The data of the `Hold` that the user has answered.
        is_approval: Whether the decision of this run is an approval, and not only a `Reply`.
        is_changed: Whether the decision of this run sets other arguments.
        seen: The arguments that the user of this run saw before the decision; None if no user decided.
        version: The version of the tool when the call started to wait; None if the call has not waited.
    """

    arguments: Mapping[str, Any] | None = None
    answer: Any = None
    is_answered: bool = False
    data: Any = None
    is_approval: bool = False
    is_changed: bool = False
    seen: Mapping[str, Any] | str | None = None
    version: str | None = None

    @property
    def inside(self) -> AllApproved | Decisions:
        """The decisions on the calls that the function of the call makes. Raises ConfigurationError for an answer without decisions."""
        if not self.is_answered:
            return Approve.all()
        if not is_object(self.answer):
            raise ConfigurationError(
                f"the answer {shown(self.answer, 80)} has no decisions; pass a dict of decisions by inner call id, such as "
                '{"call_1": True}, or decide True in place of the Answer for all of them'
            )
        return self.answer


UNDECIDED = CallDecision()

"""`TurnFinished`: the entry of the end of a turn that has calls, and the same fields for a turn whose log has no such entry.

A log has no entry if its attempt ended early, or if an older version wrote it. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aswarm._run.turn import TurnEnd
from aswarm._values.json import is_object, jsonable
from aswarm._values.messages import (
    OUTCOME_UNKNOWN,
    STARTED_INSIDE,
    STILL_RUNNING,
    Message,
    settled,
    tool_message,
)

from .entries import data_of_hold

Fields = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class CallState:
    """The state of one call of the current turn. `message`: the call in the assistant message.

    `started`, `finished`, `held`: the fields of the entry ToolCallStarted, ToolCallFinished or CallWaiting of the call; empty
    if the log has no such entry.
    """

    message: Message
    started: Fields = field(default_factory=dict[str, Any])
    finished: Fields = field(default_factory=dict[str, Any])
    held: Fields = field(default_factory=dict[str, Any])
    has_started_inside: bool = False

    @classmethod
    def of(cls, fields: Fields) -> CallState:
        """Return a call whose message is in an earlier run."""
        function = {"name": fields["name"], "arguments": fields.get("arguments", "")}
        message = {"id": fields["id"], "type": "function", "function": function}
        return cls(message, has_started_inside=fields.get(STARTED_INSIDE, False))

    @property
    def content(self) -> Any:
        """The recorded content of the result, or None."""
        outcome: Fields = self.finished.get("_outcome", {})
        return outcome.get("parts") or self.finished.get("content")

    @property
    def mark(self) -> dict[str, Any]:
        """The entry of the waiting call in the history, see `WAITING`."""
        held = self.held
        kind = {"approval": True} if held.get("kind") == "approval" else {}
        data = data_of_hold(held)
        return {"index": held["index"], "reason": held["reason"], **kind, **({} if data is None else {"data": data})}

    @property
    def may_stay_open(self) -> bool:
        """Whether a later run may execute the call. A finished call may if its handoff takes effect at the end of the turn."""
        return bool(self.finished) or not self.started or bool(self.started.get("repeatable"))

    @property
    def is_unknown(self) -> bool:
        """Whether the outcome is not known, or would not be known if the call were closed."""
        if self.finished:
            outcome: Fields = self.finished.get("_outcome", {})
            return bool(self.finished.get("still_running") or outcome.get("unknown"))
        return bool(self.started) or self.has_started_inside

    @property
    def text_if_unknown(self) -> str:
        """The answer of the call if its outcome is not known."""
        return OUTCOME_UNKNOWN + (STILL_RUNNING if self.started.get("may_continue") else "")


# --- written ---


def turn_fields(number: int, end: TurnEnd, calls: Mapping[int, CallState]) -> dict[str, Any]:
    """Return the fields of the entry. `number`: the number of the completion; 0 for the open calls of an earlier run."""
    answers = [_reference(index, message["content"], calls.get(index)) for index, message in end.answers.items()]
    entries = {index: jsonable(entry) for index, entry in end.waiting.items()}
    marks = [
        entry
        for index, entry in entries.items()
        if index not in end.kept and not ((call := calls.get(index)) and call.held and call.mark == entry)
    ]
    fields = {
        "open": end.open_calls, "waiting": [*entries], "unknown": end.unknown, "_marks": marks, "_kept": end.kept,
    }  # fmt: skip
    return {"turn": number, "answers": answers, **{key: value for key, value in fields.items() if value}}


def _reference(index: int, content: Any, call: CallState | None) -> int | dict[str, Any]:
    """Return the item of a tool message: its position, if the result of the call has its content."""
    content = jsonable(content)
    if call is not None and call.finished and jsonable(call.content) == content:
        return index
    return {"index": index, "content": content}


# --- read ---


def answers_of(fields: Fields, calls: Mapping[int, CallState]) -> Iterator[tuple[int, Any]]:
    """Yield the position and the content of each tool message of a turn."""
    for answer in fields["answers"]:
        if is_object(answer):
            yield answer["index"], answer["content"]
        else:
            yield answer, calls[answer].content


def marks_of(fields: Fields, calls: Mapping[int, CallState]) -> dict[int, Fields]:
    """Return the entries of waiting calls that the turn adds to the history, by position."""
    if not fields.get("waiting"):
        return {}
    stored = {mark["index"]: mark for mark in fields.get("_marks", ())}
    kept = fields.get("_kept", ())
    return {
        index: stored[index] if index in stored else calls[index].mark
        for index in fields["waiting"]
        if index not in kept
    }


def closed(fields: Fields, closing: Sequence[Message]) -> Fields:
    """Return the fields of a turn whose open calls got these tool messages after the end of the run, in call order."""
    added = ({"index": index, "content": new["content"]} for index, new in zip(fields["open"], closing, strict=False))
    return {**fields, "answers": sorted([*fields["answers"], *added], key=_index), "open": []}


def _index(answer: int | Fields) -> int:
    return answer["index"] if is_object(answer) else cast("int", answer)


# --- derived ---


def fields_of(calls: Mapping[int, CallState]) -> dict[str, Any]:
    """Return the fields of a turn without an entry, as if the run had stopped after the last entry."""
    indexes = sorted(calls)
    ordered = [calls[index] for index in indexes]
    waits = _waits(ordered)
    # A handoff to an agent in `functions` takes effect at the end of the turn. So its call is still open.
    finished = {
        index for index in indexes if calls[index].finished and not (waits and calls[index].finished.get("is_agent"))
    }
    has_handoff = any(calls[index].finished.get("handoff") for index in finished)
    answers = settled(
        [call.message for call in ordered],
        [tool_message(calls[index].message, "") if index in finished else None for index in indexes],
        {position: call.text_if_unknown for position, call in enumerate(ordered) if call.is_unknown},
        () if has_handoff else {position for position, call in enumerate(ordered) if call.may_stay_open},
    )
    by_index = dict(zip(indexes, answers, strict=True))
    open_ones = [index for index, answer in by_index.items() if answer is None]
    return {
        "answers": [
            index if index in finished else {"index": index, "content": answer["content"]}
            for index, answer in by_index.items()
            if answer is not None
        ],
        "open": open_ones,
        "waiting": [index for index in open_ones if waits and calls[index].held],
        "unknown": [index for index in indexes if calls[index].is_unknown],
    }


def _waits(calls: Sequence[CallState]) -> bool:
    """Return whether a waiting call keeps the turn open: not after a handoff by a function, because the new agent continues."""
    has_left = any(call.finished.get("handoff") and not call.finished.get("is_agent") for call in calls)
    return not has_left and any(call.held for call in calls)

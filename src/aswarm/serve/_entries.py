"""`Entry`: one line of the log of a run, as JSON data.

    RunStarted · (the events of `stream()` | ContextChanged | MessagesRecorded | RequestSent)*
    · RunFinished | RunFailed | RunStopped                                                    last, once

The entry of an event has what `event.to_dict()` gives, and the fields below. The entries that are no events are

    RunStarted        {run_id, conversation, agent, before, messages, resume, calls, context_variables}
    RunFailed         {error: {type, message, public_message, status_code?}, response?}
    RunStopped        {reason, message, response?}           `reason`: a code of `STOPS`, or the word of a caller;
                                                             `message`: the same as a sentence
    ContextChanged    {agent, changes, removed, by}          `by`: ids of the calls that ended since the last one
    MessagesRecorded  {start, messages}                      what the history says where the entries alone say less
    RequestSent       {model, instructions, settings, message_count, tools?}
                                                             `tools` only if they are not those of the request before

    ToolCallDelta, ToolCallStarted, ToolProgress, ToolCallFinished, CallWaiting   {..., call_id?}
    ToolCallStarted   {..., repeatable?, may_continue?}
    ToolCallFinished  {..., handoff?, is_agent?}             `handoff`: the agent that takes over if the turn ends now
    CallWaiting       {..., kind}                            "approval", "question" or "external"
    CompletionFinished {..., call_ids?, external?}           the public ids of the calls, if one is not its own id; the
                                                             indexes of calls of external tools

`messages` of RunStarted are the new messages of the user, and `before` is how many the conversation has before them.
`calls` are the open calls that a resumed run begins with: `{index, id, name, arguments, call_id?, kind?}`. Each of
`response.waiting` has its `call_id?` and `kind?` too.

`call_id` is the public id of a call, and stands there only if it is not its `id`: providers use ids again in one
conversation, and clients need different ones. See `public_ids`.

This module defines entries. It reads no clock, and does no I/O.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aswarm._messages import Message

# Why a run was stopped: the code for programs, and a sentence for people.
STOPS = {
    "cancelled": "The run was cancelled.",
    "replaced": "A new message has replaced the run.",
    "shutdown": "The service was shut down.",
    "time_limit": "The run took longer than the service allows.",
    "log_too_long": "The log of the run became longer than the service allows.",
    "no_reader": "The last reader of the run had gone.",
    "lease_lost": "The process of the run was silent for so long that another one closed the run.",
    "process_died": "The process of the run ended before the run did.",
}
ENDINGS = frozenset({"RunFinished", "RunFailed", "RunStopped"})
_JOINED = frozenset({"TextDelta", "ReasoningDelta", "RefusalDelta"})
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_KEYS = ("seq", "at", "type", "first")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log of a run.

    `seq` counts from 0 in the log, `at` is in milliseconds since the epoch, `fields` is JSON data. `first`: the `seq` of
    the first entry that was joined into this one; None for an entry as it was written. No field may be changed.
    """

    seq: int
    at: int
    type: str
    fields: Mapping[str, Any]
    first: int | None = None
    _json: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def is_last(self) -> bool:
        """Whether the log ends with this entry."""
        return self.type in ENDINGS

    @property
    def response(self) -> Mapping[str, Any]:
        """What the last entry has of the `Response`; empty for another entry, and for a run that left none."""
        found: Mapping[str, Any] | None = self.fields.get("response")
        return {} if found is None else found

    def to_dict(self) -> dict[str, Any]:
        """The entry as one JSON object: `seq`, `at`, `type`, then the fields."""
        joined = {} if self.first is None else {"first": self.first}
        return {"seq": self.seq, "at": self.at, "type": self.type, **joined, **self.fields}

    def to_json(self) -> bytes:
        """The JSON object on one line. It is made once, for the log and for all readers in this process."""
        if self._json is None:
            object.__setattr__(self, "_json", as_json(self.to_dict()))
        return cast("bytes", self._json)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Entry:
        """The entry of which `data` is the JSON object. Raises KeyError if `data` is no entry."""
        fields = {key: value for key, value in data.items() if key not in _KEYS}
        return cls(data["seq"], data["at"], data["type"], fields, data.get("first"))


def now() -> int:
    """The milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def as_json(data: object) -> bytes:
    """The data as JSON text on one line, without spaces, in UTF-8."""
    # A client may have sent half of a surrogate pair in an id, which no encoding takes.
    return _ENCODER.encode(data).encode("utf-8", "replace")


def call_id(fields: Mapping[str, Any]) -> str:
    """The public id of the call that an entry, or one of its calls, is about."""
    return str(fields.get("call_id") or fields["id"])


# --- deltas that follow each other -----------------------------------------------------------------------------------


def joined(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The same entries, with deltas of one kind that follow each other as one: for a replay, and for logs that have ended.

    The joined entry has the `seq` of the last delta and the time of the first, so a reader that names it as the last one
    it has seen misses nothing and reads nothing twice.
    """
    held: list[Entry] = []
    for entry in entries:
        if held and not _belong_together(held[-1], entry):
            yield _join(held)
            held = []
        held.append(entry)
    if held:
        yield _join(held)


def _belong_together(left: Entry, right: Entry) -> bool:
    if left.type != right.type:
        return False
    if left.type == "ToolCallDelta":  # a piece with a name or an id begins something
        same_call = left.fields["index"] == right.fields["index"]
        return same_call and right.fields["id"] is None and right.fields["name"] is None
    return left.type in _JOINED


def _join(entries: Sequence[Entry]) -> Entry:
    first, last = entries[0], entries[-1]
    if first is last:
        return first
    key = "arguments" if first.type == "ToolCallDelta" else "text"
    text = "".join(entry.fields[key] or "" for entry in entries)
    begin = first.seq if first.first is None else first.first
    return Entry(last.seq, first.at, first.type, {**first.fields, key: text}, begin)


# --- ids of calls -----------------------------------------------------------------------------------------------------


class PublicIds:
    """Gives each call of a conversation an id of its own: `x`, then `x~2`, `x~3` where a provider uses `x` again.

    The ids depend on nothing but the order of the calls, so they are the same for each reader and after a restart.
    """

    def __init__(self, history: Sequence[Message] = ()) -> None:
        self._used: set[str] = set()
        for message in history:
            self.of_message(message)

    def take(self, provider_id: str) -> str:
        """The public id of the next call, which has this id."""
        found, number = provider_id, 1
        while found in self._used:
            number += 1
            found = f"{provider_id}~{number}"
        self._used.add(found)
        return found

    def of_message(self, message: Message) -> list[str]:
        """The public ids of the calls of the next message, in call order."""
        return [self.take(str(call["id"])) for call in message.get("tool_calls") or ()]


def public_ids(history: Sequence[Message]) -> dict[str, int]:
    """The public ids of the calls of the last message that made any, each with its index: what `resume=` takes.

    An index says which call is meant, also if two calls of one message have equal ids.
    """
    ids = PublicIds()
    found: dict[str, int] = {}
    for message in history:
        if taken := ids.of_message(message):
            found = {public: index for index, public in enumerate(taken)}
    return found

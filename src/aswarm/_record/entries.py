"""`Entry`: one line of the log of a run, as JSON data.

    RunStarted · (the events of `stream()` | TurnFinished | ContextChanged | MessagesRecorded | RequestSent)*
    · RunFinished | RunFailed | RunStopped                                                    last, once

The entry of an event has the fields of `event.to_dict()`, and the additional fields below. The other entries are

    RunStarted        {run_id, conversation, agent, before, messages, resume, calls, context_variables, edited?, model?}
    TurnFinished      {turn, answers, open?, waiting?, unknown?}   for each turn with calls; see `fold`
    RunFailed         {error: {type, message, public_message, status_code?}, response?}
    RunStopped        {reason, message, response?}           `reason`: a code of `STOPS`, or a text of the caller;
                                                             `message`: the reason as a sentence
    ContextChanged    {agent, changes, removed, by}          `by`: ids of the calls that finished since the last one
    MessagesRecorded  {start, messages}                      messages of the history that differ from the other entries
    RequestSent       {model, instructions, settings, message_count, tools?}
                                                             `tools` only if they differ from the previous request

    ToolCallDelta, ToolCallStarted, ToolProgress, ToolCallFinished, CallWaiting   {..., call_id?}
    ToolCallStarted   {..., repeatable?, may_continue?}
    ToolCallFinished  {..., handoff?, is_agent?}             `handoff`: the agent that the call hands off to
    CallWaiting       {..., kind}                            "approval", "question" or "external"
    CompletionFinished {..., call_ids?, external?}           `call_ids`: the public ids of the calls, if one differs from its
                                                             `id`; `external`: the indexes of the calls of external tools

`messages` of RunStarted are the new messages of the user, and `before` is the number of messages before them. `edited` are the
names of the context variables that the operator has changed before the run, and `model` is the model that replaces the models of
the agents.
`calls` are the open calls that a resumed run starts with: `{index, id, name, arguments, call_id?, kind?}`. Each item of
`response.waiting` also has `call_id?` and `kind?`.

During an upgrade, an older version may read entries of a newer version. It ignores unknown fields and unknown types. So if an older
version must not ignore an addition, the addition needs a new format, see `Schema`. A new field that is not for readers starts with
"_".

`call_id` is the public id of a call. It is present only if it differs from `id`. Some providers reuse an id within a
conversation, but clients need unique ids. See `public_ids`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aswarm._runtime import clocks
from aswarm._values.json import jsonable
from aswarm._values.messages import Message

# The reasons for a stop: a code for programs, and a sentence for people.
STOPS = {
    "cancelled": "The run was cancelled.",
    "replaced": "A new message has replaced the run.",
    "shutdown": "The service was shut down.",
    "time_limit": "The run took longer than the service allows.",
    "log_too_long": "The log of the run became longer than the service allows.",
    "no_reader": "The last reader of the run has left.",
    "too_many_waiting": "The user has too many later runs that wait for an answer.",
    "process_died": "The process of the run ended before the end of the run.",
}
ENDINGS = frozenset({"RunFinished", "RunFailed", "RunStopped"})
JOINED = frozenset({"TextDelta", "ReasoningDelta", "RefusalDelta"})
DELTAS = JOINED | {"ToolCallDelta", "ToolProgress"}  # the messages of a run do not depend on these entries
# Searches a text of `_ENCODER`: a context variable may have such a value.
_find_non_finite = re.compile("NaN|Infinity").search
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
OF_MOST_CALLS: Mapping[str, Any] = {"error": None, "still_running": False}  # not stored, because most calls have them
# Of the response in the last entry. They are not stored there: other entries have them, and `spent` is None for most runs.
_OF_OTHER_ENTRIES = ("run_id", "messages", "text")
REST = (*_OF_OTHER_ENTRIES, "spent")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log of a run.

    Do not change the fields: readers share them.

    Args:
        seq: The number of the entry in its log, from 0.
        at_ms: The time in milliseconds since the epoch.
        type: The kind of the entry, such as "TextDelta".
        fields: The data of the entry, as JSON data.
        first: The `seq` of the first entry that was joined into this one; None for an entry that was not joined.
    """

    seq: int
    at_ms: int
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
        """The response in the last entry, as JSON data. Empty for other entries, and for a run without a response."""
        return self.fields.get("response") or {}

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as a JSON object for readers: `seq`, `at`, `type`, then the public fields."""
        data: dict[str, Any] = {"seq": self.seq, "at": self.at_ms, "type": self.type}
        if self.first is not None:
            data["first"] = self.first
        data |= self.fields
        for key in self.fields:
            if key[0] == "_":
                del data[key]
        return data

    def to_log(self) -> bytes:
        """Return the line of the entry in the log. Half a surrogate pair, which a model may send, does not change."""
        fields = self.fields
        if self.type == "ToolCallFinished":
            fields = _without(fields, OF_MOST_CALLS)
        elif self.type in ENDINGS and fields.get("response"):
            kept = {key: value for key, value in self.response.items() if key not in _OF_OTHER_ENTRIES}
            fields = {**fields, "response": _without(kept, {"spent": None})}
        text = _ENCODER.encode({"seq": self.seq, "at": self.at_ms, "type": self.type, **fields})
        line = text.encode("utf-8", "surrogatepass")
        if fields is self.fields and '"_' not in text and b"\xed" not in line and not _find_non_finite(text):
            # A private field starts with "_". Half a surrogate pair starts with 0xED. A line without these is also for readers.
            object.__setattr__(self, "_json", line)
        return line

    def to_json(self) -> bytes:
        """Return `to_dict()` as one line of JSON. All readers in this process share the bytes."""
        if self._json is None:
            object.__setattr__(self, "_json", as_json(self.to_dict()))
        return cast("bytes", self._json)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Entry:
        """Return the entry from its JSON object. Raises KeyError if `data` is not an entry."""
        fields = (
            with_last(data, {**OF_MOST_CALLS, **data}, OF_MOST_CALLS)
            if data["type"] == "ToolCallFinished"
            else dict(data)
        )
        return cls(fields.pop("seq"), fields.pop("at"), fields.pop("type"), fields, fields.pop("first", None))


def _without(fields: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in usual or value != usual[key]}


def with_last(fields: Mapping[str, Any], more: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the fields with these keys last, in the order for readers. `more`: their values."""
    moved = dict(fields)
    for key in keys:
        moved.pop(key, None)
        moved[key] = more.get(key)
    return moved


def entries_of(rows: Iterable[tuple[int, int, bytes]], after: int = -1) -> list[Entry]:
    """Return the entries with numbers above `after` from rows of a log."""
    entries: list[Entry] = []
    for first, last, data in rows:
        lines = data.split(b"\n")
        if (
            first <= after and len(lines) == last - first + 1
        ):  # no numbers are missing: earlier entries need not be parsed
            del lines[: after + 1 - first]
        of_row = map(Entry.from_dict, map(json.loads, lines))
        entries += of_row if after < 0 else [entry for entry in of_row if entry.seq > after]
    return entries


def now() -> int:
    """Return the time in milliseconds since the epoch."""
    return int(clocks.time() * 1000)


def as_json(data: object) -> bytes:
    """Return the data as one line of JSON, without spaces, in UTF-8."""
    text = _ENCODER.encode(data)
    if _find_non_finite(text):
        text = _ENCODER.encode(jsonable(data))
    # An id from a client may contain half a surrogate pair, which UTF-8 cannot encode.
    return text.encode("utf-8", "replace")


def data_of_hold(waiting: Mapping[str, Any]) -> Any:
    """Return the data of the `Hold` of a CallWaiting. For an inner run, the public field `data` has only a part of this data."""
    return waiting.get("_data", waiting["data"])


def call_id(fields: Mapping[str, Any]) -> str:
    """Return the public id of the call in these fields."""
    return str(fields.get("call_id") or fields["id"])


# --- consecutive deltas ----------------------------------------------------------------------------------------------


def joined(entries: Iterable[Entry]) -> list[Entry]:
    """Join consecutive deltas of one kind, for readers of a finished log.

    A joined entry has the `seq` of its last delta, and the time of its first delta. So a reader that continues after this `seq`
    misses no entry, and reads no entry twice.
    """
    groups: list[list[Entry]] = []
    for entry in entries:
        if groups and _belong_together(groups[-1][-1], entry):
            groups[-1].append(entry)
        else:
            groups.append([entry])
    return [group[0] if len(group) == 1 else _join(group) for group in groups]


def _belong_together(left: Entry, right: Entry) -> bool:
    if left.type != right.type:
        return False
    if left.type == "ToolCallDelta":  # a piece with a name or an id starts a new call
        same_call = left.fields["index"] == right.fields["index"]
        return same_call and right.fields["id"] is None and right.fields["name"] is None
    return left.type in JOINED


def _join(entries: Sequence[Entry]) -> Entry:
    first, last = entries[0], entries[-1]
    key = "arguments" if first.type == "ToolCallDelta" else "text"
    text = "".join(entry.fields[key] or "" for entry in entries)
    start = first.seq if first.first is None else first.first
    return Entry(last.seq, first.at_ms, first.type, {**first.fields, key: text}, start)


# --- ids of calls -----------------------------------------------------------------------------------------------------


class PublicIds:
    """Unique ids for the calls of a conversation. If a provider uses the id `x` again, the public ids are `x`, `x~2`, `x~3`.

    The ids depend only on the order of the calls. So they are the same for each reader, and after a restart.
    """

    def __init__(self, history: Sequence[Message] = ()) -> None:
        self._used: set[str] = set()
        for message in history:
            self.of_message(message)

    def take(self, provider_id: str) -> str:
        """Return the public id of the next call. `provider_id`: the id of the call in the message."""
        public, number = provider_id, 1
        while public in self._used:
            number += 1
            public = f"{provider_id}~{number}"
        self._used.add(public)
        return public

    def of_message(self, message: Message) -> list[str]:
        """Return the public ids of the calls of the next message, in call order."""
        return [self.take(str(call["id"])) for call in message.get("tool_calls") or ()]


def public_ids(history: Sequence[Message]) -> dict[str, int]:
    """Return the public ids of the calls of the last message with calls, each with its index for `resume=`.

    The index identifies the call, even if two calls of a message have equal ids.
    """
    ids = PublicIds()
    indexes: dict[str, int] = {}
    for message in history:
        if of_calls := ids.of_message(message):
            indexes = {public: index for index, public in enumerate(of_calls)}
    return indexes

"""State of the current turn, from which the wires of AG-UI and of Vercel make their frames; and frames of server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aswarm._record.entries import Entry, call_id
from aswarm._record.fold import fold
from aswarm._values.found_tools import CALL_TOOL
from aswarm._values.json import is_object, jsonable
from aswarm._values.messages import (
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    Message,
    call_input,
    call_name,
    text_of,
)

MEDIA_TYPE = "text/event-stream"
HEARTBEAT = b":\n\n"  # a comment, which clients ignore; it keeps a proxy from closing a silent connection
# If a stream ends before its run, its last frame makes a browser reconnect to a service that restarts, after a second.
RECONNECT = b"retry: 1000\n\n"


def data_frame(data: bytes) -> bytes:
    """Return a server-sent event with one line of data."""
    return b"data: %b\n\n" % data


@dataclass(slots=True)
class TurnCall:
    """A call of the turn. `id`: its public id, empty until the provider sends an id.

    `is_announced`: whether the first frame of the call was sent. `is_whole`: whether its arguments are complete.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    is_announced: bool = False
    is_whole: bool = False
    is_external: bool = False
    is_answered: bool = False

    @property
    def may_be_announced(self) -> bool:
        """Whether a frame can name the call before it is whole.

        A provider may send the name in pieces; when the arguments start, it is complete. The arguments of `call_tool` have the
        name of the called tool, so such a call must be whole.
        """
        return bool(self.id and self.name and self.arguments) and self.name != CALL_TOOL


@dataclass(slots=True)
class Turns:
    """The calls of the current turn, by index. Before the first turn of a resumed run: the open calls of the run.

    `number`: the number of the turn in the run. `has_resumed_calls`: whether an earlier run made the calls. `text`,
    `reasoning`: the id of the open text or reasoning, or None.
    """

    run_id: str = ""
    number: int = 0
    agent: str = ""
    has_resumed_calls: bool = False
    calls: dict[int, TurnCall] = field(default_factory=dict[int, TurnCall])
    text: str | None = None
    reasoning: str | None = None
    _reasonings: int = 0
    _entries: list[Entry] = field(default_factory=list[Entry])  # of the calls of the turn, for a log without its end
    _end: Mapping[str, Any] | None = None  # the fields of its TurnFinished

    @property
    def message_id(self) -> str:
        """Id of the message that this turn makes. It is the same for each reader."""
        return f"{self.run_id}-a{self.number}"

    def start_run(self, entry: Entry) -> None:
        """Apply RunStarted."""
        self.run_id, self.agent = entry.fields["run_id"], entry.fields["agent"]
        self.number, self.has_resumed_calls = 0, True
        self.calls = {call["index"]: _resumed(call) for call in entry.fields["calls"]}
        self._entries = [entry] if self.calls else []

    def start_turn(self, entry: Entry) -> None:
        """Apply TurnStarted."""
        self.number += 1
        self.agent = entry.fields["agent"]
        self.has_resumed_calls = False
        self.calls, self._entries, self._end = {}, [], None
        self._reasonings = 0

    # --- open parts ---

    def open_text(self) -> bool:
        """Open the text of the turn. Return False if the text is already open."""
        was_open, self.text = self.text is not None, self.message_id
        return not was_open

    def close_text(self) -> str | None:
        """Close the text. Return its id, or None if it was not open."""
        text, self.text = self.text, None
        return text

    def open_reasoning(self) -> bool:
        """Open a reasoning part; a turn may have several. Return False if one is already open."""
        if self.reasoning is not None:
            return False
        self._reasonings += 1
        self.reasoning = f"{self.message_id}-r{'' if self._reasonings == 1 else self._reasonings}"
        return True

    def close_reasoning(self) -> str | None:
        """Close the reasoning part. Return its id, or None if no part was open."""
        reasoning, self.reasoning = self.reasoning, None
        return reasoning

    def close_calls(self) -> list[TurnCall]:
        """Close the announced calls of a completion that was cut off, and return them."""
        cut = [call for call in self.calls.values() if call.is_announced and not call.is_whole]
        for call in cut:
            call.is_announced = False
        return cut

    # --- calls ---

    def feed(self, entry: Entry) -> TurnCall:
        """Apply a ToolCallDelta. Return its call."""
        fields = entry.fields
        call = self.calls.setdefault(fields["index"], TurnCall(fields["index"]))
        if fields["id"] is not None:
            call.id = call_id(fields)
        call.name += fields["name"] or ""
        call.arguments += fields["arguments"] or ""
        return call

    def complete(self, entry: Entry) -> list[TurnCall]:
        """Apply a CompletionFinished. Return the calls of its message, in call order."""
        fields = entry.fields
        recorded: list[Message] = fields["message"].get("tool_calls") or []
        self._entries = [entry] if recorded else []
        public = fields.get("call_ids") or [str(call["id"]) for call in recorded]
        for index, message in enumerate(recorded):
            call = self.calls.setdefault(index, TurnCall(index))
            call.id, call.is_whole = public[index], True
            call.name, call.arguments = call_name(message), call_input(message)
            call.is_external = index in fields.get("external", ())
        return [self.calls[index] for index in range(len(recorded))]

    def of(self, entry: Entry) -> TurnCall:
        """Apply an entry about one call. Return the call.

        The types are ToolCallStarted, ToolCallWithdrawn, ToolCallFinished, ToolProgress and CallWaiting.
        """
        if entry.type != "ToolProgress":
            self._entries.append(entry)
            self._end = None  # of an attempt that ended before the end of its run
        return self.calls[entry.fields["index"]]

    def answers(self, entry: Entry) -> list[tuple[TurnCall, str]]:
        """Return the calls that get an answer at the end of their turn, in call order: for example, because another handed off.

        `entry`: TurnFinished, or the entry that follows the turn. If the run was stopped or failed, open calls get an answer too,
        because they will not run. In a finished run, they stay open.
        """
        if entry.type == "TurnFinished":
            self._end = entry.fields
        if not self._entries:
            return []
        turn = fold(self._entries).turn if self._end is None else self._end
        texts = {answer["index"]: text_of(answer["content"]) for answer in turn["answers"] if is_object(answer)}
        if entry.type not in ("TurnFinished", "RunFinished"):
            texts |= {index: _text_if_closed(index, turn) for index in turn.get("open", ())}
        return [(self.calls[index], text) for index, text in sorted(texts.items()) if not self.calls[index].is_answered]


def _text_if_closed(index: int, turn: Mapping[str, Any]) -> str:
    return OUTCOME_UNKNOWN if index in turn.get("unknown", ()) else INTERRUPTED


def _resumed(fields: Mapping[str, Any]) -> TurnCall:
    identity = (fields["index"], call_id(fields), fields["name"], fields.get("arguments", ""))
    return TurnCall(*identity, is_whole=True)


def json_object(text: str) -> dict[str, Any] | None:
    """Return the arguments of a call as an object that any client can read, or None if they are not a JSON object."""
    try:
        value: object = jsonable(json.loads(text or "{}"))  # `json.loads` accepts NaN and Infinity; browsers do not
    except (ValueError, RecursionError):
        return None
    return dict(value) if is_object(value) else None


def tokens(entry: Entry) -> Mapping[str, Any]:
    """Return the usage in the last entry of the log, or an empty dict if there is none."""
    usage: Mapping[str, Any] = entry.response.get("usage", {})
    return usage


def public_error(entry: Entry) -> str:
    """Return the error text of a failed run for readers."""
    return str(entry.fields["error"]["public_message"])

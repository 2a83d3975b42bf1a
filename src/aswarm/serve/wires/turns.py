"""State of the current turn. The wires of AG-UI and of Vercel make their frames from it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._record.entries import Entry, call_id
from aswarm._values.json import is_object, jsonable
from aswarm._values.messages import (
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    STARTED_INSIDE,
    Message,
    call_input,
    call_name,
    has_started_inside,
    match_answers,
    message_blocks,
    text_of,
)


@dataclass(slots=True)
class TurnCall:
    """A call of the turn. `id`: its public id, empty until the provider sends an id.

    `is_announced`: whether the first frame of the call was sent. `is_whole`: whether its arguments are complete. `is_started`:
    whether its function has started. `has_started_inside`: for an agent as a tool, whether a function of its run had
    started before this run waited for an answer.
    """

    index: int
    id: str = ""
    provider_id: str = ""
    name: str = ""
    arguments: str = ""
    is_announced: bool = False
    is_whole: bool = False
    is_external: bool = False
    is_started: bool = False
    has_started_inside: bool = False
    is_answered: bool = False


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

    @property
    def message_id(self) -> str:
        """Id of the message that this turn makes. It is the same for each reader."""
        return f"{self.run_id}-a{self.number}"

    def start_run(self, entry: Entry) -> None:
        """Apply RunStarted."""
        self.run_id, self.agent = entry.fields["run_id"], entry.fields["agent"]
        self.number, self.has_resumed_calls = 0, True
        self.calls = {call["index"]: _resumed(call) for call in entry.fields["calls"]}

    def start_turn(self, entry: Entry) -> None:
        """Apply TurnStarted."""
        self.number += 1
        self.agent = entry.fields["agent"]
        self.has_resumed_calls = False
        self.calls = {}
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
        public = fields.get("call_ids") or [str(call["id"]) for call in recorded]
        for index, message in enumerate(recorded):
            call = self.calls.setdefault(index, TurnCall(index))
            call.id, call.provider_id, call.is_whole = public[index], str(message["id"]), True
            call.name, call.arguments = call_name(message), call_input(message)
            call.is_external = index in fields.get("external", ())
        return [self.calls[index] for index in range(len(recorded))]

    def of(self, entry: Entry) -> TurnCall:
        """Apply an entry about one call. Return the call.

        The types are ToolCallStarted, ToolCallWithdrawn, ToolCallFinished, ToolProgress and CallWaiting.
        """
        call = self.calls[entry.fields["index"]]
        if entry.type == "CallWaiting":
            call.has_started_inside = call.has_started_inside or has_started_inside(entry.fields["data"])
        if entry.type in ("CallWaiting", "ToolCallWithdrawn"):
            call.is_started = False
        else:
            call.is_started = call.is_started or entry.type == "ToolCallStarted"
        return call

    def interrupted(self) -> list[tuple[TurnCall, str]]:
        """Return the calls that have no answer at the end of the turn, for example because another call handed off."""
        calls = [call for _, call in sorted(self.calls.items())]
        return [(call, _unanswered(call)) for call in calls if call.is_whole and not call.is_answered]

    def answers(self, entry: Entry) -> list[tuple[TurnCall, str]]:
        """Return the calls of the turn that get an answer from the last entry of the log, in call order.

        If the run was stopped or failed, calls without an outcome get an answer too, because they will not run. In a finished
        run, such calls stay open.
        """
        calls = [call for _, call in sorted(self.calls.items()) if call.is_whole]
        contents = self._recorded(calls, entry)
        if entry.type != "RunFinished":
            contents = [content or _unanswered(call) for call, content in zip(calls, contents, strict=True)]
        pairs = zip(calls, contents, strict=True)
        return [(call, content) for call, content in pairs if content is not None and not call.is_answered]

    def _recorded(self, calls: Sequence[TurnCall], entry: Entry) -> list[str | None]:
        """Return the answers to these calls in the last entry, from the block of the message that made the calls.

        If no message made these calls, the answers are in the last block. If the process of the run died, the log may lack
        the last turns. Then the calls are not in the last message.
        """
        recorded = [{"id": call.provider_id, "function": {"name": call.name}} for call in calls]
        requested = None if self.has_resumed_calls else [(call.provider_id, call.arguments) for call in calls]
        blocks = message_blocks(entry.response.get("messages", ()))
        # Leave out blocks of user messages: a running run may get such messages, and they answer no calls.
        turns = [(_made_by(head), answers) for head, answers in blocks if head.get("role") != "user"]
        matching = [answers for calls_made, answers in turns if calls_made == requested]
        answers: Sequence[Message] = next(reversed(matching or [answers for _, answers in turns]), ())
        return [None if answer is None else text_of(answer["content"]) for answer in match_answers(recorded, answers)]


def _made_by(head: Message) -> list[tuple[str, str]] | None:
    """Return the ids and the arguments of the calls of a message.

    Returns None for an empty message, which `message_blocks` yields with answers to calls of an earlier run.
    """
    return [(str(call["id"]), call_input(call)) for call in head.get("tool_calls") or ()] if head else None


def _unanswered(call: TurnCall) -> str:
    return OUTCOME_UNKNOWN if call.is_started or call.has_started_inside else INTERRUPTED


def _resumed(fields: Mapping[str, Any]) -> TurnCall:
    arguments, inside = fields.get("arguments", ""), fields.get(STARTED_INSIDE, False)
    identity = (fields["index"], call_id(fields), fields["id"], fields["name"], arguments)
    return TurnCall(*identity, is_whole=True, has_started_inside=inside)


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

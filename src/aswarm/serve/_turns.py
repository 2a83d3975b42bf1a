"""What the wires of AG-UI and of Vercel need to know of the turn that they are in.

It holds counts and names. Each wire makes its own frames of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._json import is_object, jsonable
from aswarm._messages import INTERRUPTED, OUTCOME_UNKNOWN, Message, match_answers, message_blocks, text_of

from ._entries import Entry, call_id


@dataclass(slots=True)
class TurnCall:
    """A call of the turn. `id` is the public one; empty until the provider has sent an id.

    `is_announced`: the frame that begins the call was sent. `is_whole`: its arguments are whole. `is_started`: its
    function has begun.
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
    is_answered: bool = False


@dataclass(slots=True)
class Turns:
    """The calls of the current turn by index, and of a resumed run those it begins with.

    `number` counts the turns of the run. `has_resumed_calls`: the calls are those of an earlier run. `text`, `reasoning`: the
    ids of those that are open, None if none is.
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
        """The id of the message that this turn makes. It is the same for each reader."""
        return f"{self.run_id}-a{self.number}"

    def begin_run(self, entry: Entry) -> None:
        """Take RunStarted."""
        self.run_id, self.agent = entry.fields["run_id"], entry.fields["agent"]
        self.number, self.has_resumed_calls = 0, True
        self.calls = {call["index"]: _resumed(call) for call in entry.fields["calls"]}

    def begin_turn(self, entry: Entry) -> None:
        """Take TurnStarted."""
        self.number += 1
        self.agent = entry.fields["agent"]
        self.has_resumed_calls = False
        self.calls = {}
        self._reasonings = 0

    # --- what is open ---

    def open_text(self) -> bool:
        """Begin the text of the turn. Returns whether it was not open."""
        was_open, self.text = self.text is not None, self.message_id
        return not was_open

    def close_text(self) -> str | None:
        """End the text. Returns its id, None if none was open."""
        text, self.text = self.text, None
        return text

    def open_reasoning(self) -> bool:
        """Begin a reasoning; a turn may have several. Returns whether none was open."""
        if self.reasoning is not None:
            return False
        self._reasonings += 1
        self.reasoning = f"{self.message_id}-r{'' if self._reasonings == 1 else self._reasonings}"
        return True

    def close_reasoning(self) -> str | None:
        """End the reasoning. Returns its id, None if none was open."""
        reasoning, self.reasoning = self.reasoning, None
        return reasoning

    def close_calls(self) -> list[TurnCall]:
        """End the calls of a completion that came to no end. Returns those that were announced."""
        cut = [call for call in self.calls.values() if call.is_announced and not call.is_whole]
        for call in cut:
            call.is_announced = False
        return cut

    # --- calls ---

    def feed(self, entry: Entry) -> TurnCall:
        """Take ToolCallDelta. Returns its call."""
        fields = entry.fields
        call = self.calls.setdefault(fields["index"], TurnCall(fields["index"]))
        if fields["id"] is not None:
            call.id = call_id(fields)
        call.name += fields["name"] or ""
        call.arguments += fields["arguments"] or ""
        return call

    def complete(self, entry: Entry) -> list[TurnCall]:
        """Take CompletionFinished. Returns the calls of the message, in call order, with what the message says of them."""
        fields = entry.fields
        recorded: list[Message] = fields["message"].get("tool_calls") or []
        public = fields.get("call_ids") or [str(call["id"]) for call in recorded]
        for index, message in enumerate(recorded):
            call = self.calls.setdefault(index, TurnCall(index))
            call.id, call.provider_id, call.is_whole = public[index], str(message["id"]), True
            call.name, call.arguments = _named(message)
            call.is_external = index in fields.get("external", ())
        return [self.calls[index] for index in range(len(recorded))]

    def of(self, entry: Entry) -> TurnCall:
        """The call that ToolCallStarted, ToolProgress, ToolCallFinished or CallWaiting is about."""
        call = self.calls[entry.fields["index"]]
        call.is_started = call.is_started or entry.type == "ToolCallStarted"
        return call

    def interrupted(self) -> list[tuple[TurnCall, str]]:
        """The calls without an answer once the turn has ended, such as one that waited when a function handed off."""
        calls = [call for _, call in sorted(self.calls.items())]
        return [(call, _unanswered(call)) for call in calls if call.is_whole and not call.is_answered]

    def answers(self, entry: Entry) -> list[tuple[TurnCall, str]]:
        """What the last entry of the log means for calls of the turn that have no answer yet, in call order.

        A run that was left has answered the calls that it cut; the others will not run. A run that has ended by itself leaves
        them open.
        """
        calls = [call for _, call in sorted(self.calls.items()) if call.is_whole]
        contents = self._recorded(calls, entry)
        if entry.type != "RunFinished":
            contents = [content or _unanswered(call) for call, content in zip(calls, contents, strict=True)]
        found = zip(calls, contents, strict=True)
        return [(call, content) for call, content in found if content is not None and not call.is_answered]

    def _recorded(self, calls: Sequence[TurnCall], entry: Entry) -> list[str | None]:
        """The answers of the last entry to these calls: after the message that made them, or after the last one.

        They need not be the last ones: the log of a run whose process died may lack its last turns.
        """
        asked = [{"id": call.provider_id, "function": {"name": call.name}} for call in calls]
        made = None if self.has_resumed_calls else [(call.provider_id, call.arguments) for call in calls]
        blocks = message_blocks(entry.response.get("messages", ()))
        # Messages of the user may stand at the end, which a run got while it was at work.
        found = [(_made_by(head), answers) for head, answers in blocks if head.get("role") != "user"]
        own = [answers for calls_made, answers in found if calls_made == made]
        answers: Sequence[Message] = next(reversed(own or [answers for _, answers in found]), ())
        return [None if answer is None else text_of(answer["content"]) for answer in match_answers(asked, answers)]


def _made_by(head: Message) -> list[tuple[str, str]] | None:
    """The ids and the arguments of the calls of a message; None for the empty one, before answers to calls of an earlier run."""
    return [(str(call["id"]), _named(call)[1]) for call in head.get("tool_calls") or ()] if head else None


def _named(call: Message) -> tuple[str, str]:
    """The name and the arguments of a recorded call."""
    named: Mapping[str, Any] = call.get("function") or call.get("custom") or {}
    return str(named.get("name") or ""), str(named.get("arguments") or named.get("input") or "")


def _unanswered(call: TurnCall) -> str:
    return OUTCOME_UNKNOWN if call.is_started else INTERRUPTED


def _resumed(fields: Mapping[str, Any]) -> TurnCall:
    arguments = fields.get("arguments", "")
    return TurnCall(fields["index"], call_id(fields), fields["id"], fields["name"], arguments, is_whole=True)


def json_object(text: str) -> dict[str, Any] | None:
    """The arguments of a call as an object that any client can read; None if they are not JSON, or no object."""
    try:
        found: object = jsonable(json.loads(text or "{}"))  # Python reads NaN and infinities, and browsers do not
    except (ValueError, RecursionError):
        return None
    return dict(found) if is_object(found) else None


def tokens(entry: Entry) -> Mapping[str, Any]:
    """The usage that the last entry of the log has; empty if it has none."""
    usage: Mapping[str, Any] = entry.response.get("usage", {})
    return usage


def public_error(entry: Entry) -> str:
    """What readers are told of the error that has ended the run."""
    return str(entry.fields["error"]["public_message"])

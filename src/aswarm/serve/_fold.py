"""What a log says: the history, the agent and the context variables after its entries.

The log of a whole run gives what its `Response` has. A log that was cut anywhere gives a valid history, as `run.response` of
a run that was left there: what ran is answered, a call that had begun is told as unknown, and one that had not begun is
open or told as interrupted. Never waits, and does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._messages import INTERRUPTED, OUTCOME_UNKNOWN, STILL_RUNNING, WAITING, Message, tool_message

from ._entries import Entry

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "requests")


@dataclass(slots=True)
class CallState:
    """What the log says of one call of the current turn. `message`: the call as the assistant message has it."""

    message: Message
    started: Mapping[str, Any] | None = None
    finished: Mapping[str, Any] | None = None
    held: Mapping[str, Any] | None = None

    @property
    def key(self) -> tuple[str, str]:
        return str(self.message["id"]), self.message.get("function", {}).get("name", "")

    @property
    def may_stay_open(self) -> bool:
        return self.finished is None and (self.started is None or bool(self.started.get("repeatable")))


@dataclass(slots=True)
class Folded:
    """What the entries so far say.

    `asked`: the new messages of the user. `made`: the messages of the run up to its last whole turn. `agent`: the name of
    the active agent. `context`: the context variables as JSON data. `usage`: the tokens of the completions. `ending`: the
    last entry of the log, None as long as the run goes. `calls`: those of the turn that has not ended, by index.
    `is_resumed_turn`: they are calls of an earlier run.
    """

    agent: str | None = None
    context: dict[str, Any] = field(default_factory=dict[str, Any])
    asked: list[Message] = field(default_factory=list[Message])
    made: list[Message] = field(default_factory=list[Message])
    usage: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    run_id: str = ""
    ending: Entry | None = None
    calls: dict[int, CallState] = field(default_factory=dict[int, CallState])
    is_resumed_turn: bool = False
    _pieces: list[str] = field(default_factory=list[str])

    @property
    def partial(self) -> str:
        """The text of an unfinished completion."""
        return "".join(self._pieces)

    @property
    def messages(self) -> list[Message]:
        """The messages that the run adds to the history: those of the user, those made, and the answers of its last turn."""
        return [*self.asked, *self.response_messages]

    @property
    def response_messages(self) -> list[Message]:
        """The messages as `Response.messages` has them: without those of the user that the run began with."""
        marks, answers = self._marks(), self._answers()
        if not marks:
            return [*self.made, *answers]
        if self.is_resumed_turn:
            waiting = [
                {**tool_message(self.calls[mark["index"]].message, mark["reason"]), WAITING: [mark]} for mark in marks
            ]
            return [*self.made, *waiting, *answers]
        return [*self.made[:-1], {**self.made[-1], WAITING: marks}, *answers]

    @property
    def active_agent(self) -> str | None:
        """The agent that the conversation continues with: the last in call order that a call of the turn has handed off to."""
        outcomes = [call.finished or {} for call in self._finished]
        handoffs = [outcome["handoff"] for outcome in outcomes if outcome.get("handoff")]
        return handoffs[-1] if handoffs else self.agent

    # --- the turn ---

    def _begin_turn(self, calls: Iterable[tuple[int, Message]], *, resumed: bool) -> None:
        self.calls = {index: CallState(message) for index, message in calls}
        self.is_resumed_turn = resumed

    def _settle(self) -> None:
        self.made = self.response_messages
        self.agent = self.active_agent
        self.calls = {}

    def _call(self, fields: Mapping[str, Any]) -> CallState:
        index = fields["index"]
        if index not in self.calls:
            self.calls[index] = CallState(_call_message(fields))
        return self.calls[index]

    @property
    def _ordered(self) -> list[CallState]:
        return [call for _, call in sorted(self.calls.items())]

    @property
    def _waits(self) -> bool:
        held = any(call.held is not None for call in self.calls.values())
        return held and not any(
            call.finished is not None and call.finished.get("handoff") and not call.finished.get("is_agent")
            for call in self.calls.values()
        )

    @property
    def _finished(self) -> list[CallState]:
        """The calls that have ended, in call order. A handoff of an agent in `functions` is open again once a call waits."""
        waits = self._waits
        return [
            call
            for call in self._ordered
            if call.finished is not None and not (waits and call.finished.get("is_agent"))
        ]

    def _marks(self) -> list[dict[str, Any]]:
        """What the history records of the calls that wait."""
        if not self._waits:
            return []
        return [_mark(call.held) for call in self._ordered if call.held is not None]

    def _answers(self) -> list[Message]:
        finished = self._finished
        has_handoff = any(call.finished and call.finished.get("handoff") for call in finished)
        open_ones = [] if has_handoff else self._open_calls(finished)
        messages: list[Message] = []
        for call in self._ordered:
            if call in finished and call.finished is not None:
                messages.append(tool_message(call.message, call.finished["content"]))
            elif not any(call is each for each in open_ones):
                messages.append(tool_message(call.message, _text_without_outcome(call)))
        return messages

    def _open_calls(self, finished: Sequence[CallState]) -> list[CallState]:
        # An answer is matched to the first call of its id and name, so no call before an answered one stays open.
        answered: set[tuple[str, str]] = set()
        found: list[CallState] = []
        for call in reversed(self._ordered):
            is_finished = any(call is each for each in finished)
            if is_finished or call.key in answered or not (call.may_stay_open or _is_reopened(call)):
                answered.add(call.key)
            else:
                found.append(call)
        return found

    # --- entries ---

    def add(self, entry: Entry) -> None:
        """Take the next entry. An entry of a type that is not known says nothing about the history."""
        fields = entry.fields
        match entry.type:
            case "RunStarted":
                self.run_id, self.agent = fields["run_id"], fields["agent"]
                self.asked, self.context = list(fields["messages"]), dict(fields.get("context_variables") or {})
                self._begin_turn(((call["index"], _call_message(call)) for call in fields["calls"]), resumed=True)
            case "TurnStarted":
                self._settle()
                self.agent = fields["agent"]
                self._pieces.clear()
            case "TextDelta":
                self._pieces.append(fields["text"])
            case "CompletionFinished":
                self._add_completion(fields)
            case "ToolCallStarted":
                self._call(fields).started = fields
            case "ToolCallFinished":
                self._call(fields).finished = fields
            case "CallWaiting":
                call = self._call(fields)
                call.held, call.started = fields, None
            case "HandedOff":
                self._settle()
                self.agent = fields["target"]
            case _:
                self._add_other(entry)

    def _add_completion(self, fields: Mapping[str, Any]) -> None:
        message = fields["message"]
        self.made.append(message)
        self._pieces.clear()
        self._begin_turn(enumerate(message.get("tool_calls") or ()), resumed=False)
        for key in _COUNTS:
            self.usage[key] += fields["usage"].get(key, 0)

    def _add_other(self, entry: Entry) -> None:
        fields = entry.fields
        if entry.type == "ContextChanged":
            self.context = {key: value for key, value in self.context.items() if key not in fields["removed"]}
            self.context.update(fields["changes"])
        elif entry.type == "MessagesRecorded":
            self._settle()
            self.made[fields["start"] :] = fields["messages"]
        elif entry.is_last:
            self._end(entry)

    def _end(self, entry: Entry) -> None:
        self.ending = entry
        self._settle()
        response = entry.response
        self.made = list(response.get("messages", self.made))
        self.agent = response.get("agent") or self.agent
        self.context = dict(response.get("context_variables", self.context))


def fold(entries: Iterable[Entry]) -> Folded:
    """What the entries of a log say, from its first entry to any other one: the messages, the usage, the end.

    An entry of an unknown type says nothing.
    """
    folded = Folded()
    for entry in entries:
        folded.add(entry)
    return folded


def _call_message(fields: Mapping[str, Any]) -> Message:
    function = {"name": fields["name"], "arguments": fields.get("arguments", "")}
    return {"id": fields["id"], "type": "function", "function": function}


def _mark(held: Mapping[str, Any] | None) -> dict[str, Any]:
    held = held or {}
    kind = {"approval": True} if held.get("kind") == "approval" else {}
    data = {} if held["data"] is None else {"data": held["data"]}
    return {"index": held["index"], "reason": held["reason"], **kind, **data}


def _is_reopened(call: CallState) -> bool:
    return call.finished is not None and bool(call.finished.get("is_agent"))


def _text_without_outcome(call: CallState) -> str:
    if call.started is None:
        return INTERRUPTED
    return OUTCOME_UNKNOWN + (STILL_RUNNING if call.started.get("may_continue") else "")

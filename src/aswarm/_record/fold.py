"""`fold` computes the history, the agent and the context variables of a run from the entries of its log. No I/O.

The log of a finished run gives the same data as its `Response`. A log that ends earlier also gives a valid history, as if the
run had stopped at this point. In this history, a finished call has its result, a started call has an unknown outcome, and any
other call is open or interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._values.messages import WAITING, Message, has_started_inside, text_of, tool_message

from .entries import REST, Entry, with_last
from .turns import CallState, answers_of, closed, fields_of, marks_of

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "requests")


@dataclass(slots=True)
class Folded:
    """The state of a run after some entries of its log.

    Args:
        agent: The name of the active agent.
        context: The context variables as JSON data.
        usage: The tokens of the completions.
        run_id: The id of the run.
    """

    agent: str | None = None
    context: dict[str, Any] = field(default_factory=dict[str, Any])
    usage: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    run_id: str = ""
    # The new messages of the user, and the messages of the run without the tool messages of the current turn.
    _asked: list[Message] = field(init=False, default_factory=list[Message])
    _made: list[Message] = field(init=False, default_factory=list[Message])
    _ending: Entry | None = field(init=False, default=None)  # the last entry of the log
    # The calls of the current turn, by index.
    calls: dict[int, CallState] = field(init=False, default_factory=dict[int, CallState])
    _finished: Mapping[str, Any] | None = field(init=False, default=None)  # the fields of its TurnFinished
    _is_resumed_turn: bool = field(init=False, default=False)  # whether `calls` are calls of an earlier run
    _pieces: list[str] = field(init=False, default_factory=list[str])

    @property
    def partial(self) -> str:
        """The text of an unfinished completion."""
        return "".join(self._pieces)

    @property
    def messages(self) -> list[Message]:
        """All messages that the run adds to the history: the new messages of the user, and `response_messages`."""
        return [*self._asked, *self.response_messages]

    @property
    def response_messages(self) -> list[Message]:
        """The messages of the run as in `Response.messages`, without the new messages of the user."""
        return self._as_stopped()[0]

    @property
    def active_agent(self) -> str | None:
        """The agent that the conversation continues with, after the handoffs of the current turn in call order."""
        return self._as_stopped()[1]

    # --- the turn ---

    @property
    def turn(self) -> Mapping[str, Any]:
        """The fields of the TurnFinished of the current turn. Without such an entry, as if the run stopped now."""
        return fields_of(self.calls) if self._finished is None else self._finished

    def _as_stopped(self) -> tuple[list[Message], str | None]:
        """Return the messages and the agent, as if the run stopped now."""
        if not self.calls:
            return self._made.copy(), self.agent
        turn, calls, agent = self.turn, self.calls, self.agent
        answers: list[Message] = []
        for index, content in answers_of(turn, calls):
            answers.append(tool_message(calls[index].message, content))
            agent = calls[index].finished.get("handoff") or agent
        marks = marks_of(turn, calls)
        if not marks:
            return [*self._made, *answers], agent
        if self._is_resumed_turn:
            waiting = [
                {**tool_message(calls[index].message, mark["reason"]), WAITING: [mark]} for index, mark in marks.items()
            ]
            return [*self._made, *waiting, *answers], agent
        return [*self._made[:-1], {**self._made[-1], WAITING: [*marks.values()]}, *answers], agent

    def _settle(self) -> None:
        if self.calls:
            self._made, self.agent = self._as_stopped()
            self.calls, self._finished = {}, None

    def _call(self, fields: Mapping[str, Any]) -> CallState:
        self._finished = None  # another attempt continues the turn: its last attempt ended before the end of the run
        index = fields["index"]
        if index not in self.calls:
            self.calls[index] = CallState.of(fields)
        return self.calls[index]

    # --- entries ---

    def add(self, entry: Entry) -> None:
        """Add the next entry of the log. Entries of unknown types are ignored."""
        fields = entry.fields
        match entry.type:
            case "RunStarted":
                self._start(fields)
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
                call.held, call.started = fields, {}
                # If the call waits a second time, for an approval, the second entry has no data. So the old value stays.
                call.has_started_inside = call.has_started_inside or has_started_inside(fields["data"])
            case "ToolCallWithdrawn":
                self._call(fields).started = {}
            case "HandedOff":
                self._settle()
                self.agent = fields["target"]
            case _:
                self._add_other(entry)

    def _start(self, fields: Mapping[str, Any]) -> None:
        self.run_id, self.agent = fields["run_id"], fields["agent"]
        self._asked, self.context = list(fields["messages"]), dict(fields.get("context_variables") or {})
        self.calls = {call["index"]: CallState.of(call) for call in fields["calls"]}
        self._is_resumed_turn = True

    def _add_completion(self, fields: Mapping[str, Any]) -> None:
        message = fields["message"]
        self._made.append(message)
        self._pieces.clear()
        self.calls = {index: CallState(call) for index, call in enumerate(message.get("tool_calls") or ())}
        self._is_resumed_turn = False
        for key in _COUNTS:
            self.usage[key] += fields["usage"].get(key, 0)

    def _add_other(self, entry: Entry) -> None:
        fields = entry.fields
        if entry.type == "TurnFinished":
            self._finished = {"open": [], "waiting": [], "unknown": [], **fields}
        elif entry.type == "ContextChanged":
            self.context = {key: value for key, value in self.context.items() if key not in fields["removed"]}
            self.context.update(fields["changes"])
        elif entry.type == "MessagesRecorded":
            self._settle()
            self._made[fields["start"] :] = fields["messages"]
        elif entry.is_last:
            self._ending, response = entry, entry.response
            if (closing := fields.get("_closing")) and self.calls:
                self._finished = closed(self.turn, closing)
            self._settle()
            self._made = list(response.get("messages") or self._made)
            self.agent = response.get("agent") or self.agent
            self.context = dict(response.get("context_variables", self.context))


def fold(entries: Iterable[Entry]) -> Folded:
    """Return the state of a run after these entries: the messages, the usage, the end.

    `entries`: the entries of the log, from the first one. Entries of unknown types are ignored.
    """
    folded = Folded()
    for entry in entries:
        folded.add(entry)
    return folded


def whole_end(entries: Sequence[Entry]) -> Entry:
    """Return the last entry of a complete log. Add the messages of its response, which come from the other entries.

    `entries`: the log, or only its entries that are not deltas.
    """
    folded, last = fold(entries), entries[-1]
    if not last.response:
        return last
    messages = folded.response_messages
    contents = (message.get("content") for message in reversed(messages) if message.get("role") == "assistant")
    text = text_of(next(contents, None))
    rest = {**last.response, "run_id": folded.run_id, "messages": messages, "text": text}
    fields = {key: value for key, value in last.fields.items() if key != "_closing"}
    return Entry(last.seq, last.at_ms, last.type, {**fields, "response": with_last(last.response, rest, REST)})

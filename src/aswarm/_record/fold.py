"""`fold` computes the history, the agent and the context variables of a run from the entries of its log. No I/O.

The log of a finished run gives the same data as its `Response`. A log that ends earlier also gives a valid history, as if the
run had stopped at this point. In this history, a finished call has its result, a started call has an unknown outcome, and any
other call is open or interrupted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aswarm._values.messages import (
    INTERRUPTED,
    OUTCOME_UNKNOWN,
    STARTED_INSIDE,
    STILL_RUNNING,
    WAITING,
    Message,
    has_started_inside,
    last_head,
    match_answers,
    text_of,
    tool_message,
)

from .entries import Entry, data_of_hold

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens", "requests")


@dataclass(slots=True, eq=False)
class CallState:
    """The state of one call of the current turn. `message`: the call in the assistant message.

    `started`, `finished`, `held`: the fields of the entry ToolCallStarted, ToolCallFinished or CallWaiting of the call; empty
    if the log has no such entry.
    """

    message: Message
    started: Mapping[str, Any] = field(default_factory=dict[str, Any])
    finished: Mapping[str, Any] = field(default_factory=dict[str, Any])
    held: Mapping[str, Any] = field(default_factory=dict[str, Any])
    has_started_inside: bool = False


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
    _calls: dict[int, CallState] = field(init=False, default_factory=dict[int, CallState])
    _is_resumed_turn: bool = field(init=False, default=False)  # whether `_calls` are calls of an earlier run
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

    def _as_stopped(self) -> tuple[list[Message], str | None]:
        """Return the messages and the agent, as if the run stopped now."""
        if not self._calls:
            return self._made.copy(), self.agent
        calls, finished, held, agent = self._turn()
        open_calls = [] if len(finished) == len(calls) else _open_calls(calls, finished)
        answers: list[Message] = []
        for call in calls:
            if call in finished:
                answers.append(tool_message(call.message, call.finished["content"]))
            elif call not in open_calls:
                answers.append(tool_message(call.message, _text_without_outcome(call)))
        if not held:
            return [*self._made, *answers], agent
        marks = [_mark(call.held) for call in held]
        if self._is_resumed_turn:
            waiting = [tool_message(call.message, call.held["reason"]) for call in held]
            marked = [{**message, WAITING: [mark]} for message, mark in zip(waiting, marks, strict=True)]
            return [*self._made, *marked, *answers], agent
        return [*self._made[:-1], {**self._made[-1], WAITING: marks}, *answers], agent

    def _turn(self) -> tuple[list[CallState], list[CallState], list[CallState], str | None]:
        """Return all calls, finished calls and waiting calls of the turn, in call order, and the agent after the turn."""
        calls = [self._calls[index] for index in sorted(self._calls)]
        finished, held, agent = list[CallState](), list[CallState](), self.agent
        for call in calls:
            if call.finished:
                finished.append(call)
            if call.held:
                held.append(call)
        if held and any(call.finished.get("handoff") and not call.finished.get("is_agent") for call in finished):
            held = []  # after a handoff by a function, the new agent continues, and no call waits
        if held:
            # A handoff to an agent in `functions` takes effect at the end of the turn. So its call is still open.
            finished = [call for call in finished if not call.finished.get("is_agent")]
        for call in finished:
            agent = call.finished.get("handoff") or agent
        return calls, finished, held, agent

    def _settle(self) -> None:
        if self._calls:
            self._made, self.agent = self._as_stopped()
            self._calls = {}

    def _call(self, fields: Mapping[str, Any]) -> CallState:
        index = fields["index"]
        if index not in self._calls:
            self._calls[index] = CallState(_call_message(fields))
        return self._calls[index]

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
        self._calls = {
            call["index"]: CallState(_call_message(call), has_started_inside=call.get(STARTED_INSIDE, False))
            for call in fields["calls"]
        }
        self._is_resumed_turn = True

    def _add_completion(self, fields: Mapping[str, Any]) -> None:
        message = fields["message"]
        self._made.append(message)
        self._pieces.clear()
        self._calls = {index: CallState(call) for index, call in enumerate(message.get("tool_calls") or ())}
        self._is_resumed_turn = False
        for key in _COUNTS:
            self.usage[key] += fields["usage"].get(key, 0)

    def _add_other(self, entry: Entry) -> None:
        fields = entry.fields
        if entry.type == "ContextChanged":
            self.context = {key: value for key, value in self.context.items() if key not in fields["removed"]}
            self.context.update(fields["changes"])
        elif entry.type == "MessagesRecorded":
            self._settle()
            self._made[fields["start"] :] = fields["messages"]
        elif entry.is_last:
            self._ending, response = entry, entry.response
            self._settle()
            self._made = list(response.get("messages", self._made))
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
    folded, last = fold(entries[:-1]), entries[-1]
    if not last.response:
        return last
    messages = folded.response_messages
    if closing := last.fields.get("_closing"):
        messages = _closed(messages, closing, entries[0].fields["calls"])
    contents = (message.get("content") for message in reversed(messages) if message.get("role") == "assistant")
    response = {**last.response, "messages": messages, "text": text_of(next(contents, None))}
    fields = {key: value for key, value in last.fields.items() if key != "_closing"}
    return Entry(last.seq, last.at_ms, last.type, {**fields, "response": response})


def _closed(messages: list[Message], closing: Sequence[Message], resumed: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages of a run with the answers that closed its last calls, in the order of the calls.

    `resumed`: the open calls that the run has started with. They are its last calls if it made no completion.
    """
    end = last_head(messages)
    calls: Sequence[Message] = messages[end].get("tool_calls") or ()
    if not calls:
        end, calls = -1, [_call_message(call) for call in resumed]
    answers = [message for message in (*messages[end + 1 :], *closing) if WAITING not in message]
    return [*messages[: end + 1], *(answer for answer in match_answers(calls, answers) if answer is not None)]


def _call_message(fields: Mapping[str, Any]) -> Message:
    function = {"name": fields["name"], "arguments": fields.get("arguments", "")}
    return {"id": fields["id"], "type": "function", "function": function}


def _mark(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a waiting call in the history, see `WAITING`."""
    kind = {"approval": True} if held.get("kind") == "approval" else {}
    data = data_of_hold(held)
    return {"index": held["index"], "reason": held["reason"], **kind, **({} if data is None else {"data": data})}


def _open_calls(calls: Sequence[CallState], finished: Sequence[CallState]) -> list[CallState]:
    if any(call.finished.get("handoff") for call in finished):
        return []
    # A tool message answers the first call with its id and name. So a call cannot stay open if a later call with the same id
    # and name has an answer.
    answered: set[tuple[str, str]] = set()
    open_calls: list[CallState] = []
    for call in reversed(calls):
        key = str(call.message["id"]), call.message.get("function", {}).get("name", "")
        # A finished call that is not in `finished` is a handoff that takes effect at the end of the turn.
        may_stay_open = bool(call.finished) or not call.started or bool(call.started.get("repeatable"))
        if call in finished or key in answered or not may_stay_open:
            answered.add(key)
        else:
            open_calls.append(call)
    return open_calls


def _text_without_outcome(call: CallState) -> str:
    if not call.started:
        return OUTCOME_UNKNOWN if call.has_started_inside else INTERRUPTED
    return OUTCOME_UNKNOWN + (STILL_RUNNING if call.started.get("may_continue") else "")

"""`fold` computes the history, the agent and the context variables of a run from the entries of its log. No I/O.

The log of a finished run gives the same data as its `Response`. A log that ends earlier also gives a valid history, as if the
run had stopped at this point. In this history, a finished call has its result, a started call has an unknown outcome, and any
other call is open or interrupted.

A turn with calls ends with the entry `TurnFinished`. A log has no such entry if its attempt ended early, or if an older version
wrote it; then `fold` derives the same fields.

`recorded_response` is the response of a run that this process cannot replay, from its entries alone. A process of another
version may lack an agent, or send another request than the recorded one. The conversation then gets the recorded messages
nevertheless. So the next run knows which calls have a result, and which of them may have run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aswarm._run.turn import TurnEnd
from aswarm._values.agent import Agent, Response, UnknownCall
from aswarm._values.decisions import open_calls
from aswarm._values.json import is_object, jsonable
from aswarm._values.messages import (
    OUTCOME_UNKNOWN,
    STARTED_INSIDE,
    STILL_RUNNING,
    WAITING,
    Message,
    call_arguments,
    call_name,
    has_started_inside,
    match_answers,
    message_blocks,
    settled,
    text_of,
    tool_message,
)
from aswarm._values.usage import Usage

from .entries import REST, Entry, data_of_hold, with_last

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


def recorded_response(folded: Folded, before: Sequence[Message], agent: Agent) -> Response:
    """Return the response of a stopped run. `before`: the messages before the response. `agent`: the active agent."""
    messages, used = folded.response_messages, folded.usage
    history = [*before, *messages]
    return Response(
        messages=messages,
        agent=agent,
        context_variables=folded.context,
        usage=Usage(used["prompt_tokens"], used["completion_tokens"], used["total_tokens"], used["requests"]),
        stop="cancelled",
        run_id=folded.run_id,
        unknown_calls=[*_unknown_calls(history, messages)],
        open_calls=open_calls(history),
    )


def _unknown_calls(history: Sequence[Message], messages: Sequence[Message]) -> Iterator[UnknownCall]:
    """Yield the calls whose answers in `messages` say that the outcome is unknown."""
    new = {id(message) for message in messages}
    for head, answers in message_blocks(history):
        calls = head.get("tool_calls") or ()
        for call, answer in zip(calls, match_answers(calls, answers), strict=True):
            if answer and id(answer) in new and text_of(answer["content"]).startswith(OUTCOME_UNKNOWN):
                sender = str(head.get("sender") or "")
                yield UnknownCall(str(call["id"]), call_name(call), call_arguments(call), sender)

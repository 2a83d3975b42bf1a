"""`EntryMaker`: creates the entries of one run from its events and its current response.

The module decides the content of the log of a run. It reads the clock, and does no other I/O.

`ItemMaker`: creates the entries of an item of a batch. They are the entries that a rerun needs.

TurnStarted, CompletionFinished    the whole completion, with its usage
ToolCallStarted                    a function is about to run
ToolCallFinished                   the outcome of the call
ToolCallWithdrawn                  the call stays open; its function has not run
RunFinished                        the `Response` of the item
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol, TypeAlias

from aswarm._run.call import ToolCall
from aswarm._run.turn import Turn
from aswarm._runtime import clocks
from aswarm._tools.directory import AgentDirectory
from aswarm._tools.tool import Tool
from aswarm._tools.toolbox import toolbox
from aswarm._values.agent import Agent, Response
from aswarm._values.context import changes
from aswarm._values.decisions import OpenCall, Resume, open_calls, recorded_resume, waiting_entries
from aswarm._values.errors import AswarmError, ConfigurationError, named
from aswarm._values.events import (
    CallWaiting,
    CompletionFinished,
    Event,
    HandedOff,
    ReasoningDelta,
    RefusalDelta,
    RunFinished,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnStarted,
)
from aswarm._values.json import jsonable, whole_characters
from aswarm._values.messages import STARTED_INSIDE, Message, call_name, has_started_inside
from aswarm._wire.request import CompletionRequest

from .entries import JOINED, OF_MOST_CALLS, REST, STOPS, Entry, PublicIds, now, public_ids, with_last
from .facts import INSIDE
from .fold import Folded, turn_fields
from .outcomes import recordable, recorded_response, response_fields

# The data of a call to a tool that the client itself has defined. An external tool is defined by the agent.
CLIENT_TOOL: Mapping[str, Any] = {"client_tool": True}
ErrorText: TypeAlias = Callable[[BaseException], str]
"""Type of an `error_text` function: it gets the exception of a failed run and returns the error text for readers."""


class LiveState(Protocol):
    """The part of a run's state that its entries need."""

    turn: Turn

    @property
    def response(self) -> Response: ...


def general_error(error: BaseException) -> str:
    """Return the same text for every error of a run. Only the log of the server contains the details."""
    return "The run ended with an error."


class EntryMaker:
    """Makes the entries of one run, in order.

    `history`: the messages of the conversation before the run.
    `error_text`: returns the text of an error for readers.
    `folded`: the state of the run after the entries so far, except deltas.
    `seq`: the number of the next entry.
    """

    def __init__(self, history: Sequence[Message] = (), *, error_text: ErrorText = general_error) -> None:
        self.folded = Folded()
        self._history = history
        self._public = PublicIds(history)
        self._error_text = error_text
        self.seq = 0
        self._agent: Agent | None = None
        self._ids: dict[int, str] = {}  # public ids of the calls of this turn, by index
        self._turn = 0
        self._has_calls = False  # whether the turn has calls and no entry of its end
        self._tools: Any = None
        self._context: Mapping[Any, Any] = {}
        self._ended: list[str] = []  # calls that finished since the context was last compared
        self._compared = 0  # the number of messages that were compared with the entries

    def follow(self, folded: Folded, response: Response) -> None:
        """Continue after recorded entries, with the response that they make. Only the end of the run may follow."""
        self.folded, self._context, self._compared = folded, response.context_variables, len(response.messages)

    def _make(self, kind: str, fields: Mapping[str, Any]) -> Entry:
        entry = Entry(self.seq, int(clocks.time() * 1000), kind, fields)  # not `now()`, to save a frame for each entry
        self.seq += 1
        if kind not in JOINED:  # no later entry needs the text of a delta
            self.folded.add(entry)
        return entry

    # --- start and end ---

    def started(
        self,
        run_id: str,
        conversation: str,
        agent: Agent,
        messages: Sequence[Message] = (),
        *,
        resume: Resume = False,
        context_variables: Mapping[str, Any] | None = None,
        private: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Return the first entry.

        `messages`: the new messages of the user. `resume`: the argument of the run. `private`: more fields.
        """
        self._agent, self._context = agent, context_variables or {}
        calls = open_calls(self._history) if resume is not False else []
        self._has_calls = bool(calls)
        indexes = {call.index for call in calls}
        self._ids = {index: public for public, index in public_ids(self._history).items() if index in indexes}
        fields = {
            "run_id": run_id,
            "conversation": conversation,
            "agent": agent.name,
            "before": len(self._history),
            "messages": jsonable(list(messages)),
            "resume": jsonable(recorded_resume(resume)),
            "calls": self._open_calls(calls, agent, self._history),
            "context_variables": recordable(self._context),
            **(private or {}),
        }
        return self._make("RunStarted", fields)

    def failed(self, error: BaseException, response: Response | None = None, turn: Turn | None = None) -> list[Entry]:
        """Return the last entries of a failed run. `response`: the response of the run; by default `error.response`.

        `turn`: the last turn of the run.
        """
        if response is None and isinstance(error, AswarmError):
            response = error.response
        fields: dict[str, Any] = {
            "type": type(error).__name__,
            "message": jsonable(str(error)),
            "public_message": jsonable(self._error_text(error)),
        }
        for name in ("status_code", "retry_after"):
            if (value := getattr(error, name, None)) is not None:
                fields[name] = value
        return self._end("RunFailed", {"error": fields}, response, turn)

    def stopped(self, reason: str, response: Response | None = None, turn: Turn | None = None) -> list[Entry]:
        """Return the last entries of a stopped run. `reason`: a code of `STOPS`, or a text of the caller.

        `turn`: the last turn of the run.
        """
        message = STOPS.get(reason, f"The run was stopped: {reason}.")
        return self._end("RunStopped", {"reason": reason, "message": message}, response, turn)

    def _end(self, kind: str, fields: Mapping[str, Any], response: Response | None, turn: Turn | None) -> list[Entry]:
        if response is None:
            return [self._make(kind, fields)]
        # The last entry is stored without its messages, so the entries before it must contain all of them.
        missing = [*self._turn_finished(turn), *self._differences(response)]
        dumped = response.to_dict()
        calls = self._open_calls(response.open_calls, response.agent, [*self._history, *response.messages])
        waiting_calls = [{**old, **new} for old, new in zip(dumped["waiting"], calls, strict=True)]
        recorded = {**dumped, "waiting": waiting_calls}
        return [*missing, self._make(kind, {**fields, "response": with_last(recorded, recorded, REST)})]

    def request(self, request: CompletionRequest) -> Entry:
        """Return the entry of a request as it is sent. A page for developers shows such entries."""
        body = request.body
        system = [message["content"] for message in body["messages"][:1] if message.get("role") == "system"]
        hidden = ("model", "messages", "tools")
        fields = {
            "model": body["model"],
            "instructions": jsonable(system[0] if system else None),
            "settings": jsonable({key: value for key, value in body.items() if key not in hidden}),
            "message_count": len(body["messages"]) - len(system),
        }
        tools = jsonable(body.get("tools") or [])
        if tools != self._tools:
            self._tools = fields["tools"] = tools
        return self._make("RequestSent", fields)

    # --- events ---

    def event(self, event: Event, state: LiveState, private: Mapping[str, Any] | None = None) -> list[Entry]:
        """Return the entries of an event.

        `state`: the current state of the run. `private`: fields of the entry that only a later attempt reads.
        """
        if isinstance(event, TextDelta | ReasoningDelta | RefusalDelta):  # first, because most events are deltas
            return [self._make(type(event).__name__, {"text": whole_characters(event.text)})]
        if isinstance(event, RunFinished):
            return self._end("RunFinished", {}, event.response, state.turn)
        fields = event.to_dict()
        kind = fields.pop("type")
        if isinstance(event, TurnStarted | HandedOff):
            before = [*self._turn_finished(state.turn), *self._differences(state.response)] if self.seq > 1 else []
            if isinstance(event, HandedOff):
                self._agent = event.target
            else:
                self._agent, self._ids, self._turn = event.agent, {}, event.turn
            return [*before, self._make(kind, fields)]
        if isinstance(event, CompletionFinished):
            return [self._make(kind, {**fields, **self._completed(event), **(private or {})})]
        return self._of_call(event, state, kind, {**fields, **(private or {})})

    def _of_call(
        self,
        event: ToolCallDelta | ToolCallStarted | ToolProgress | ToolCallFinished | CallWaiting,
        state: LiveState,
        kind: str,
        fields: dict[str, Any],
    ) -> list[Entry]:
        if fields.get("_outcome") == {}:  # nothing for a replay
            del fields["_outcome"]
        if event.id is not None:
            if event.index not in self._ids:
                self._ids[event.index] = self._public.take(event.id)
            if (public := self._ids[event.index]) != event.id:
                fields["call_id"] = public
        if isinstance(event, ToolCallStarted) and (tool := _tool(event.agent, event.name)):
            # For a call whose process died.
            hints = {"repeatable": tool.repeatable, "may_continue": tool.abandon_on_cancel}
            fields |= {key: True for key, value in hints.items() if value}
        elif isinstance(event, CallWaiting):
            marks = waiting_entries([*self._history[-1:], *state.response.messages]) or {}
            fields["kind"] = kind_of(event.agent, event.name, marks.get(event.index))
        elif isinstance(event, ToolCallFinished):
            current = state.response
            if event.handoff and (tool := _tool(self._agent, event.name)) and tool.is_handoff:
                fields["is_agent"] = True
            self._ended.append(fields.get("call_id") or event.id)
            entry = self._make(kind, with_last(fields, fields, OF_MOST_CALLS))
            return [entry, *self._context_changes(current)]
        return [self._make(kind, fields)]

    def _completed(self, event: CompletionFinished) -> dict[str, Any]:
        provider_ids, public, external = list[str](), list[str](), list[int]()
        for index, call in enumerate(event.message.get("tool_calls") or ()):
            provider_ids.append(str(call["id"]))
            if index not in self._ids:
                self._ids[index] = self._public.take(provider_ids[index])
            public.append(self._ids[index])
            if (tool := _tool(self._agent, call_name(call))) and tool.is_external:
                external.append(index)
        self._has_calls = bool(public)
        ids = {} if public == provider_ids else {"call_ids": public}
        return {**ids, **({"external": external} if external else {})}

    def withdrawn_call(self, call: ToolCall) -> Entry:
        """Return the entry of a call whose start was reported, but whose function did not run."""
        return self._make(*withdrawal(call))

    # --- the end of a turn, and differences between the response and the entries so far ---

    def _turn_finished(self, turn: Turn | None) -> list[Entry]:
        if not self._has_calls or turn is None:
            return []
        self._has_calls = False
        return [self._make("TurnFinished", turn_fields(self._turn, turn.end, self.folded.calls))]

    def _differences(self, response: Response) -> list[Entry]:
        entries = self._context_changes(response)
        recorded = self.folded.response_messages[self._compared :]
        messages: list[Message] = jsonable(response.messages[self._compared :])
        start, self._compared = self._compared, len(response.messages)
        if messages == recorded:
            return entries
        while recorded and messages and recorded[0] == messages[0]:
            del recorded[0], messages[0]
            start += 1
        return [*entries, self._make("MessagesRecorded", {"start": start, "messages": messages})]

    def _context_changes(self, response: Response) -> list[Entry]:
        before, self._context = self._context, response.context_variables
        changed, removed = changes(before, self._context)
        ended, self._ended = self._ended, []
        if not (changed or removed):
            return []
        fields = {
            "agent": self.folded.agent,
            "changes": recordable(changed),
            "removed": list(jsonable(dict.fromkeys(removed))),
            "by": ended,
        }
        return [self._make("ContextChanged", fields)]

    def _open_calls(self, calls: Sequence[OpenCall], agent: Agent, history: Sequence[Message]) -> list[dict[str, Any]]:
        marks = waiting_entries(history) or {} if calls else {}
        described: list[dict[str, Any]] = []
        for call in calls:
            names = ("index", "id", "name", "arguments")
            fields: dict[str, Any] = {name: getattr(call, name) for name in names}
            if (public := self._ids.get(call.index, call.id)) != call.id:
                fields["call_id"] = public
            if (kind := kind_of(agent, call.name, marks.get(call.index))) is not None:
                fields["kind"] = kind
            if has_started_inside(call.data):
                fields[STARTED_INSIDE] = True
            described.append(fields)
        return described


def withdrawal(call: ToolCall) -> tuple[str, dict[str, Any]]:
    """Return the type and the fields of the entry of a call that was announced, but whose function did not run."""
    fields = {"index": call.index, "id": call.id, "name": call.name}
    if (outer := call.parent) is None:
        return "ToolCallWithdrawn", fields
    progress = {"index": outer.index, "id": outer.id, "name": outer.name}
    return "ToolProgress", {**progress, "value": {"type": "ToolCallWithdrawn", **fields}, INSIDE: True}


def _tool(agent: Agent | None, name: str) -> Tool[..., Any] | None:
    try:
        return None if agent is None else toolbox(agent).tools.get(name)
    except ConfigurationError:  # the run failed with this error
        return None


def kind_of(agent: Agent | None, name: str, mark: Mapping[str, Any] | None) -> str | None:
    """Return the kind of answer that an open call waits for, see CallWaiting. None: the call does not wait for an answer."""
    if mark is None:
        return None
    tool = _tool(agent, name)
    if mark.get("data") == CLIENT_TOOL if tool is None else tool.is_external:
        return "external"
    return "approval" if mark.get("approval") else "question"


_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens", "details")
_used = attrgetter(*_USAGE)


class ItemMaker:
    """Makes the entries of one item, in order. `EntryMaker` makes the entries of other runs."""

    def __init__(self, context: Mapping[str, Any]) -> None:
        """`context`: the context variables that the item starts with."""
        self._context = context
        self._turn = 0

    def event(self, event: Event, _state: object, private: Mapping[str, Any] | None = None) -> list[Entry]:
        """Return the entries of an event, if a rerun needs them."""
        if isinstance(event, TurnStarted):
            self._turn = event.turn
        elif isinstance(event, CompletionFinished):  # with the turn, because a turn without a completion runs again
            at, usage = now(), dict(zip(_USAGE, _used(event.usage), strict=True))
            fields = {"message": event.message, "finish_reason": event.finish_reason, "usage": usage, **(private or {})}
            turn = Entry(0, at, "TurnStarted", {"turn": self._turn})
            return [turn, Entry(0, at, "CompletionFinished", fields)]
        elif isinstance(event, ToolCallStarted | ToolCallFinished):
            return [_entry(type(event).__name__, {**_fields(event), **(private or {})})]
        elif isinstance(event, CallWaiting):  # a rerun decides again whether the call must wait
            # If a function of an inner run has started, the call counts as started: a rerun cannot know its outcome.
            return [] if _has_started_inside(event) else [_entry("ToolCallWithdrawn", {"index": event.index})]
        elif isinstance(event, ToolProgress) and private and not _has_started_inside(event.value):
            return [_entry("ToolProgress", {**_of_code(event), **private})]
        return []

    def withdrawn_call(self, call: ToolCall) -> Entry:
        return _entry(*withdrawal(call))

    def finished(self, response: Response) -> Entry:
        """Return the last entry. Raises ConfigurationError if a context variable cannot be recorded."""
        return _entry("RunFinished", {"_response": response_fields(response, self._context)})

    def response(self, last: Entry, agents: AgentDirectory) -> Response:
        """Return the response that the last entry records."""
        fields = last.fields["_response"]
        # If no agent has the recorded name, `agent` is a placeholder with this name. A run of the placeholder fails.
        agent = agents.find_or_name(fields["agent"], "the journal has a response of the agent")
        return recorded_response(fields, agent, self._context)


def _fields(event: ToolCallStarted | ToolCallFinished) -> dict[str, Any]:
    if isinstance(event, ToolCallStarted):
        return {"index": event.index}
    error = {} if event.error is None else {"error": named(event.error)}
    still_running = {"still_running": True} if event.still_running else {}
    return {"index": event.index, "content": event.content, **error, **still_running}


def _has_started_inside(value: object) -> bool:
    return isinstance(value, CallWaiting) and has_started_inside(value.data)


def _of_code(event: ToolProgress) -> dict[str, Any]:
    """Return the fields that record a call inside code, or the start of the code; see `Facts`."""
    value = event.value
    if isinstance(value, CallWaiting):  # a rerun decides again whether the call must wait
        value = {"type": "ToolCallWithdrawn", "index": value.index, "name": value.name}
    elif isinstance(value, ToolCallStarted | ToolCallFinished):
        value = {"type": type(value).__name__, "name": value.name, **_fields(value)}
    return {"index": event.index, "value": value}


def _entry(kind: str, fields: Mapping[str, Any]) -> Entry:
    return Entry(0, now(), kind, fields)

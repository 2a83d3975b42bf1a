"""`EntryMaker`: makes the entries of one run from its events, and from what its response says at the moment.

Decides what the log of a run contains. It holds no log, and does no I/O but read the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from aswarm._agent import Agent, Response
from aswarm._context import changes
from aswarm._decisions import Decisions, OpenCall, waiting, waiting_entries
from aswarm._errors import AswarmError, ConfigurationError
from aswarm._events import (
    CallWaiting,
    CompletionFinished,
    Event,
    HandedOff,
    RunFinished,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnStarted,
)
from aswarm._json import jsonable
from aswarm._messages import Message, call_name
from aswarm._tools.tool import Tool
from aswarm._tools.toolbox import toolbox
from aswarm._wire.request import CompletionRequest

from ._entries import STOPS, Entry, PublicIds, now, public_ids
from ._fold import Folded

# The data of a call of a tool that only the client has, in place of an external tool of the agent.
CLIENT_TOOL: Mapping[str, Any] = {"client_tool": True}
ErrorText = Callable[[BaseException], str]


def general_error(error: BaseException) -> str:
    """What readers are told of an error that ended a run: nothing but that there was one. The log of the server has the rest."""
    return "The run ended with an error."


class EntryMaker:
    """Makes the entries of one run, in order.

    `history`: the messages of the conversation before the run. `error_text`: the text of an error for readers. `clock`: the
    milliseconds since the epoch. `folded`: what the entries so far say. `seq`: the number of the next entry.
    """

    def __init__(
        self, history: Sequence[Message] = (), *, error_text: ErrorText = general_error, clock: Callable[[], int] = now
    ) -> None:
        self.folded = Folded()
        self._history = history
        self._public = PublicIds(history)
        self._error_text = error_text
        self._clock = clock
        self.seq = 0
        self._agent: Agent | None = None
        self._ids: dict[int, str] = {}  # the public ids of the calls of this turn by index
        self._tools: Any = None
        self._context: Mapping[Any, Any] = {}
        self._ended: list[str] = []  # calls that ended since the context was compared
        self._compared = 0  # how many messages are known to be as the history has them

    @classmethod
    def of_log(cls, entries: Iterable[Entry], agent: Agent, history: Sequence[Message]) -> EntryMaker:
        """A maker of the last entries of a log. `agent`: the active one. `history`: that of the conversation at the end."""
        maker = cls()
        for entry in entries:
            maker.folded.add(entry)
        maker._agent, maker._context, maker._history = agent, maker.folded.context, history
        maker._ids = {index: public for public, index in public_ids(history).items()}
        return maker

    def _make(self, kind: str, fields: Mapping[str, Any]) -> Entry:
        entry = Entry(self.seq, self._clock(), kind, fields)
        self.seq += 1
        self.folded.add(entry)
        return entry

    # --- the beginning and the end ---

    def started(
        self,
        run_id: str,
        conversation: str,
        agent: Agent,
        messages: Sequence[Message] = (),
        *,
        resume: bool | Decisions = False,
        context_variables: Mapping[str, Any] | None = None,
    ) -> Entry:
        """The first entry. `messages`: the new ones of the user. `resume`: the decisions, as the run gets them."""
        self._agent, self._context = agent, context_variables or {}
        calls = waiting(self._history) if resume is not False else []
        ids = {index: public for public, index in public_ids(self._history).items()}
        self._ids = {call.index: ids[call.index] for call in calls}
        fields = {
            "run_id": run_id,
            "conversation": conversation,
            "agent": agent.name,
            "before": len(self._history),
            "messages": jsonable(list(messages)),
            "resume": jsonable(resume),
            "calls": self._open_calls(calls, agent, self._history),
            "context_variables": jsonable(self._context),
        }
        return self._make("RunStarted", fields)

    def failed(self, error: BaseException, response: Response | None = None) -> list[Entry]:
        """The last entries of a run that an error has ended. `response`: that of the run, or else that of the error."""
        if response is None and isinstance(error, AswarmError):
            response = error.response
        status: int | None = getattr(error, "status_code", None)
        retry_after: float | None = getattr(error, "retry_after", None)
        told = {
            "type": type(error).__name__,
            "message": jsonable(str(error)),
            "public_message": jsonable(self._error_text(error)),
            **({} if status is None else {"status_code": status}),
            **({} if retry_after is None else {"retry_after": retry_after}),
        }
        return self._end("RunFailed", {"error": told}, response)

    def stopped(self, reason: str, response: Response | None = None) -> list[Entry]:
        """The last entries of a run that was left: `reason` says why, as a code of `STOPS` or in the words of a caller."""
        message = STOPS.get(reason, f"The run was stopped: {reason}.")
        return self._end("RunStopped", {"reason": reason, "message": message}, response)

    def _end(self, kind: str, fields: Mapping[str, Any], response: Response | None) -> list[Entry]:
        if response is None:
            return [self._make(kind, fields)]
        found = self._context_changes(response)
        return [*found, self._make(kind, {**fields, "response": self._response_fields(response)})]

    def request(self, request: CompletionRequest) -> Entry:
        """The entry of a request as it is sent, for pages that show everything."""
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

    def event(self, event: Event, response: Callable[[], Response]) -> list[Entry]:
        """The entries of an event. `response` gives that of the run as it is now, such as `lambda: run.response`."""
        kind = type(event).__name__
        match event:
            case RunFinished(response=final):
                return self._end(kind, {}, final)
            case TurnStarted():
                before = self._differences(response()) if self.seq > 1 else []
                self._agent, self._ids = event.agent, {}
                return [*before, self._make(kind, _fields(event))]
            case HandedOff():
                before = self._differences(response())
                self._agent = event.target
                return [*before, self._make(kind, _fields(event))]
            case CompletionFinished():
                return [self._make(kind, {**_fields(event), **self._completed(event)})]
            case ToolCallDelta() | ToolCallStarted() | ToolProgress() | ToolCallFinished() | CallWaiting():
                return self._of_call(event, response)
            case _:
                return [self._make(kind, _fields(event))]

    def _of_call(
        self,
        event: ToolCallDelta | ToolCallStarted | ToolProgress | ToolCallFinished | CallWaiting,
        response: Callable[[], Response],
    ) -> list[Entry]:
        fields = {**_fields(event), **self._public_id(event)}
        if isinstance(event, ToolCallStarted):
            fields |= _hints(event)
        elif isinstance(event, CallWaiting):
            marks = waiting_entries([*self._history[-1:], *response().messages]) or {}
            fields["kind"] = kind_of(event.agent, event.name, marks.get(event.index))
        elif isinstance(event, ToolCallFinished):
            current = response()
            fields |= self._handoff(event, current)
            self._ended.append(fields.get("call_id") or event.id)
            made = self._make("ToolCallFinished", fields)
            return [made, *self._context_changes(current)]
        return [self._make(type(event).__name__, fields)]

    def _public_id(
        self, event: ToolCallDelta | ToolCallStarted | ToolProgress | ToolCallFinished | CallWaiting
    ) -> dict[str, str]:
        if event.id is None:
            return {}
        public = self._ids.get(event.index)
        if public is None:
            public = self._ids[event.index] = self._public.take(event.id)
        return {} if public == event.id else {"call_id": public}

    def _completed(self, event: CompletionFinished) -> dict[str, Any]:
        own = [str(call["id"]) for call in event.message.get("tool_calls") or ()]
        for index, each in enumerate(own):
            if index not in self._ids:
                self._ids[index] = self._public.take(each)
        public = [self._ids[index] for index in range(len(own))]
        names = enumerate(map(call_name, event.message.get("tool_calls") or ()))
        external = [index for index, name in names if (tool := _tool(self._agent, name)) and tool.is_external]
        ids = {} if public == own else {"call_ids": public}
        return {**ids, **({"external": external} if external else {})}

    def _handoff(self, event: ToolCallFinished, response: Response) -> dict[str, Any]:
        if event.error is not None:
            return {}
        tool = _tool(self._agent, event.name)
        is_new = response.agent.name != self.folded.active_agent
        return {
            **({"handoff": response.agent.name} if is_new else {}),
            **({"is_agent": True} if tool is not None and tool.is_handoff else {}),
        }

    # --- what the response says, and the entries so far do not ---

    def _differences(self, response: Response) -> list[Entry]:
        found = self._context_changes(response)
        known = self.folded.response_messages
        messages: list[Message] = jsonable(response.messages[self._compared :])
        same = sum(1 for _ in takewhile(_are_equal, zip(messages, known[self._compared :], strict=False)))
        start, self._compared = self._compared + same, len(response.messages)
        if same == len(messages) and len(known) == self._compared:
            return found
        return [*found, self._make("MessagesRecorded", {"start": start, "messages": messages[same:]})]

    def _context_changes(self, response: Response) -> list[Entry]:
        before, self._context = self._context, response.context_variables
        changed, removed = changes(before, self._context)
        ended, self._ended = self._ended, []
        if not (changed or removed):
            return []
        fields = {
            "agent": self.folded.agent,
            "changes": jsonable(changed),
            "removed": list(jsonable(dict.fromkeys(removed))),
            "by": ended,
        }
        return [self._make("ContextChanged", fields)]

    def _response_fields(self, response: Response) -> dict[str, Any]:
        dumped = response.model_dump(mode="json")
        calls = self._open_calls(response.waiting, response.agent, [*self._history, *response.messages])
        return {
            **dumped,
            "run_id": response.run_id,
            "text": jsonable(response.text),
            "waiting": [{**old, **new} for old, new in zip(dumped["waiting"], calls, strict=True)],
        }

    def _open_calls(self, calls: Sequence[OpenCall], agent: Agent, history: Sequence[Message]) -> list[dict[str, Any]]:
        marks = waiting_entries(history) or {} if calls else {}
        found: list[dict[str, Any]] = []
        for call in calls:
            fields: dict[str, Any] = {
                "index": call.index,
                "id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
            if (public := self._ids.get(call.index, call.id)) != call.id:
                fields["call_id"] = public
            if (kind := kind_of(agent, call.name, marks.get(call.index))) is not None:
                fields["kind"] = kind
            found.append(fields)
        return found


def _are_equal(pair: tuple[Message, Message]) -> bool:
    return pair[0] == pair[1]


def _fields(event: Event) -> dict[str, Any]:
    fields = event.to_dict()
    del fields["type"]
    return fields


def _hints(event: ToolCallStarted) -> dict[str, bool]:
    """What a cut in the middle of the call means."""
    tool = _tool(event.agent, event.name)
    if tool is None:
        return {}
    hints = {"repeatable": tool.repeatable, "may_continue": tool.abandon_on_cancel}
    return {key: True for key, value in hints.items() if value}


def _tool(agent: Agent | None, name: str) -> Tool[..., Any] | None:
    try:
        return None if agent is None else toolbox(agent).tools.get(name)
    except ConfigurationError:  # the run has ended with it
        return None


def kind_of(agent: Agent | None, name: str, mark: Mapping[str, Any] | None) -> str | None:
    """What a call that is open waits for: "approval", "question", "external"; None for one that has asked nothing."""
    tool = _tool(agent, name)
    if tool is not None and tool.is_external:
        return "external"
    if tool is None and mark is not None and mark.get("data") == CLIENT_TOOL:
        return "external"
    if mark is None:
        return None
    return "approval" if mark.get("approval") else "question"

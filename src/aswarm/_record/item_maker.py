"""`ItemMaker`: creates the entries of an item of a batch. They are the entries that a rerun needs.

TurnStarted, CompletionFinished    the whole completion, with its usage
ToolCallStarted                    a function is about to run
ToolCallFinished                   the outcome of the call
ToolCallWithdrawn                  the call stays open; its function has not run
RunFinished                        the `Response` of the item
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from aswarm._run.call import ToolCall
from aswarm._tools.directory import AgentDirectory
from aswarm._values.agent import Response
from aswarm._values.errors import named
from aswarm._values.events import (
    CallWaiting,
    CompletionFinished,
    Event,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
    TurnStarted,
)
from aswarm._values.messages import has_started_inside

from .entries import Entry, now
from .entry_maker import withdrawal
from .outcomes import recorded_response, response_fields

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
            return [Entry(0, now(), type(event).__name__, {**_fields(event), **(private or {})})]
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

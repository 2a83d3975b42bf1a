"""A record of a run, and helpers to feed it."""

from __future__ import annotations

import copy
from typing import Any

from aswarm import Agent, Result, Usage
from aswarm._run.call import ToolCall
from aswarm._run.outcome import ToolOutcome
from aswarm._run.state import RunState
from aswarm._wire.accumulator import Completion
from aswarm._wire.request import RequestSettings

Json = dict[str, Any]
WHOLE = RequestSettings(stream=False)


def wire_call(call_id: str = "c", name: str = "look", arguments: str = "{}") -> Json:
    """Return a tool call as a provider sends it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def asking(*calls: Json, content: str | None = None) -> Json:
    """Return an assistant message with these calls."""
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def told(call_id: str, content: str = "seen", **more: Any) -> Json:
    """Return a tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def complete(state: RunState, *calls: Json, content: str | None = None, **extra: Any) -> Json:
    """Let the model answer."""
    state.turns += 1
    message = {"role": "assistant", "content": content, "tool_calls": list(calls) or None, **extra}
    finish = "tool_calls" if calls else "stop"
    return state.record_completion(Completion(copy.deepcopy(message), finish, Usage(total_tokens=3, requests=1)))


def finish(call: ToolCall, content: str = "seen", *, agent: Agent | None = None, **changes: Any) -> None:
    """Finish a call with this result."""
    call.start()
    call.finish(ToolOutcome(content, Result(value=content, agent=agent, context_variables=changes)))

"""What is recorded of one item: its steps as text, and what they say when the item is run again.

Decides the form of every record and what may be in one. Never waits and never writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from pydantic_core import to_jsonable_python

from aswarm._agent import Agent, Response, Result
from aswarm._context import changes, copy_containers
from aswarm._errors import ConfigurationError
from aswarm._json import is_array, is_object, shown
from aswarm._messages import OUTCOME_UNKNOWN, Message
from aswarm._run.plan import ToolOutcome
from aswarm._usage import Usage
from aswarm._wire.accumulator import Accumulator, whole_message

from .sqlite import Step

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_USAGE = (*_COUNTS, "requests", "details")
# A provider's client may leave objects in a message; they are recorded as they would be sent.
_write = json.JSONEncoder(separators=(",", ":"), default=to_jsonable_python).encode


class Place(NamedTuple):
    """Which call: `turn` counts the completions before it, `position` the calls of its message."""

    turn: int
    position: int


class RecordedFailure(Exception):  # noqa: N818 - reads as what it is
    """What went wrong in a call of an earlier process, as text."""


class Tape:
    """The record of one item, as far as it goes."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.finished: str | None = None
        self._completions: dict[int, str] = {}
        self._calls: dict[Place, str | None] = {}  # None: started, and nothing is known of its end
        for step in steps:
            self.take(step)

    def take(self, step: Step) -> None:
        """Take in one step, as it is recorded or as it is read."""
        place = Place(step.turn, step.position)
        match step.kind:
            case "completion":
                self._completions[step.turn] = step.data
            case "started":
                self._calls[place] = None
            case "withdrawn":
                del self._calls[place]
            case "outcome":
                self._calls[place] = step.data
            case _:
                self.finished = step.data

    def completion(self, turn: int) -> Mapping[str, Any] | None:
        """What was recorded of this completion (see `completion_data`), or None."""
        return json.loads(self._completions[turn]) if turn in self._completions else None

    def knows(self, place: Place) -> bool:
        """Whether this call has ended, or may have begun: then it must not run."""
        return place in self._calls

    def outcome(self, place: Place) -> Mapping[str, Any]:
        """What was recorded of a known call (see `outcome_data`)."""
        data = self._calls[place]
        return {"content": OUTCOME_UNKNOWN, "error": OUTCOME_UNKNOWN} if data is None else json.loads(data)

    def is_running(self, place: Place) -> bool:
        """Whether the call was started and has no outcome."""
        return place in self._calls and self._calls[place] is None


# --- completions ---


def whole(chunks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """A completion as one chunk, of which the same message is made whenever it is read.

    Raises CompletionError where the chunks are no completion; one chunk that came alone is for its reader to judge.
    """
    if len(chunks) == 1 and _is_settled(chunks[0]):
        return chunks[0]
    accumulator = Accumulator()
    for chunk in chunks:
        accumulator.feed(chunk)
    completion = accumulator.finish()
    calls: list[Message] = completion.message["tool_calls"] or []
    # Numbered, so that they stay apart however odd their ids and names are.
    numbered: list[Message] = [{"index": position, **call} for position, call in enumerate(calls)]
    message: Message = {**completion.message, "tool_calls": numbered or None}
    usage = completion.usage
    counts = {**usage.details, **{key: getattr(usage, key) for key in _COUNTS}}
    return {"choices": [{"index": 0, "message": message, "finish_reason": completion.finish_reason}], "usage": counts}


def _is_settled(chunk: Mapping[str, Any]) -> bool:
    """Whether it is a whole completion in which nothing is left to be made up, as the id of a call may be."""
    message = whole_message(chunk)
    calls: Any = () if message is None else message.get("tool_calls") or ()
    return message is not None and is_array(calls) and all(is_object(call) and bool(call.get("id")) for call in calls)


def completion_data(asked: Mapping[str, str], chunk: Mapping[str, Any]) -> str:
    """The record of a completion: what was asked, and the answer as one whole chunk."""
    return _write({"asked": asked, "chunk": {"choices": chunk["choices"], "usage": chunk.get("usage")}})


# --- tool calls ---


def outcome_data(outcome: ToolOutcome, before: Mapping[str, Any] | None, context: Mapping[str, Any]) -> str:
    """The record of how a call ended. `before`: a copy of the context from before it, where it could write to it.

    Raises ConfigurationError where a context variable cannot be recorded.
    """
    merged = outcome.result.context_variables if outcome.result else {}
    written, removed = ({}, []) if before is None else _recordable(before, context)
    for key, value in merged.items():
        _check_json(value, key)
    record = {
        "content": outcome.content,
        "agent": None if outcome.agent is None else outcome.agent.name,
        "context": merged,
        "written": written,
        "removed": removed,
        "error": None if outcome.error is None else _text(outcome.error),
        "still_running": outcome.still_running,
    }
    return _write({key: value for key, value in record.items() if value})


def recorded_outcome(record: Mapping[str, Any], agent: Agent | None, context: dict[str, Any]) -> ToolOutcome:
    """The outcome of the call, which did to `context` what it does to it now."""
    _change(context, record.get("written", {}), record.get("removed", ()))
    content = record.get("content", "")
    error = RecordedFailure(record["error"]) if "error" in record else None
    result = None if error else Result(value=content, agent=agent, context_variables=record.get("context", {}))
    return ToolOutcome(content, result, error, bool(record.get("still_running")))


def _text(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception of which no text can be made
        return type(error).__name__


# --- the end ---


def response_data(response: Response, context: Mapping[str, Any]) -> str:
    """The record of a finished item. `context`: what the item began with. Raises ConfigurationError as `outcome_data`."""
    written, removed = _recordable(context, response.context_variables)
    return _write(
        {
            "messages": response.messages,
            "agent": None if response.agent is None else response.agent.name,
            "written": written,
            "removed": removed,
            "usage": {key: getattr(response.usage, key) for key in _USAGE},
            "stop": response.stop,
        }
    )


def recorded_response(record: Mapping[str, Any], agent: Agent | None, context: Mapping[str, Any]) -> Response:
    """The `Response` of a finished item; `context` is what it begins with."""
    variables = copy_containers(context)
    _change(variables, record["written"], record["removed"])
    return Response(
        messages=record["messages"],
        agent=agent,
        context_variables=variables,
        usage=Usage(**record["usage"]),
        stop=record["stop"],
    )


# --- context variables ---


def _change(context: dict[str, Any], written: Mapping[str, Any], removed: Iterable[str]) -> None:
    for key in removed:
        context.pop(key, None)
    context.update(written)


def _recordable(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    written, removed = changes(before, after)
    for key, value in (*written.items(), *((key, None) for key in removed)):
        _check_json(value, key)
    return written, removed


def _check_json(value: object, place: object) -> None:
    if not isinstance(place, str):
        raise ConfigurationError(f"the context variable {place!r} cannot be recorded in the journal: its key is no str")
    if type(value) is dict:
        for key, item in cast("dict[object, object]", value).items():
            _check_json(item, f"{place}[{key!r}]" if isinstance(key, str) else key)
    elif type(value) is list:
        for position, item in enumerate(cast("list[object]", value)):
            _check_json(item, f"{place}[{position}]")
    elif not (value is None or type(value) in (str, int, float, bool)):
        raise ConfigurationError(
            f"the context variable {place} was set to {shown(value, 80)}, which the journal cannot hold: it records what "
            "JSON has (dict with str keys, list, str, int, float, bool, None). Set it to that, or run without a journal"
        )

"""The record of one item: its steps as text, and what they mean when the item runs again.

Decides the form of every record and what a record may hold. Never waits and never writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple, cast

from pydantic_core import to_jsonable_python

from aswarm._agent import Agent, Response, Result, UnknownCall
from aswarm._context import changes, copy_containers
from aswarm._decisions import OpenCall
from aswarm._errors import ConfigurationError, ToolError
from aswarm._json import shown
from aswarm._messages import OUTCOME_UNKNOWN
from aswarm._run.plan import ToolOutcome
from aswarm._usage import Usage

from .sqlite import Step

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_USAGE = (*_COUNTS, "requests", "details")
# A provider's client may put objects into a message; they are recorded in the form in which they would be sent.
_write = json.JSONEncoder(separators=(",", ":"), default=to_jsonable_python).encode


class CallKey(NamedTuple):
    """Identifies a call in its item: `turn` counts the completions before it, `position` the calls of its message."""

    turn: int
    position: int


class RecordedToolError(ToolError):
    """A tool call of an earlier process failed. The text has the type and the message of its error.

    Also for a call that had started and whose outcome was not recorded: the text says that it is unknown.
    """


class ItemRecord:
    """The steps of one item that are recorded so far."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.finished: str | None = None
        self._completions: dict[int, str] = {}
        self._calls: dict[CallKey, str | None] = {}  # None: the call was started, and its outcome is unknown
        # By turn: the positions of the calls with an outcome, in the order of the steps.
        self._ended: dict[int, list[int]] = {}
        for step in steps:
            self.add(step)

    def add(self, step: Step) -> None:
        """Add one step: it was read from the file, or is being recorded now."""
        key = CallKey(step.turn, step.position)
        match step.kind:
            case "completion":
                self._completions[step.turn] = step.data
            case "started":
                self._calls[key] = None
            case "withdrawn":
                del self._calls[key]
            case "outcome":
                self._calls[key] = step.data
                self._ended.setdefault(step.turn, []).append(step.position)
            case _:  # "finished"
                self.finished = step.data

    def completion(self, turn: int) -> Mapping[str, Any] | None:
        """The recorded completion of this turn (see `completion_data`), or None."""
        return json.loads(self._completions[turn]) if turn in self._completions else None

    def has_call(self, key: CallKey) -> bool:
        """Whether the call has ended, or may have begun: then it must not run again, unless it is repeatable."""
        return key in self._calls

    def outcome(self, key: CallKey) -> Mapping[str, Any]:
        """The record of how the call ended (see `outcome_data`). `has_call(key)` must be true."""
        data = self._calls[key]
        if data is None:
            return {"content": OUTCOME_UNKNOWN, "error": OUTCOME_UNKNOWN, "unknown": True}
        recorded: Mapping[str, Any] = json.loads(data)
        return recorded

    def outcomes(self, turn: int) -> list[tuple[int, Mapping[str, Any]]]:
        """The positions of the calls of a turn with their records, in the order in which the calls ended."""
        return [(position, self.outcome(CallKey(turn, position))) for position in self._ended.get(turn, ())]

    def is_running(self, key: CallKey) -> bool:
        """Whether the call was started and has no outcome."""
        return key in self._calls and self._calls[key] is None


# --- completions ---


def completion_data(fingerprint: Mapping[str, str], chunk: Mapping[str, Any]) -> str:
    """The record of a completion: the fingerprint of its request, and the answer as one whole chunk."""
    return _write({"asked": fingerprint, "chunk": {"choices": chunk["choices"], "usage": chunk.get("usage")}})


# --- tool calls ---


def outcome_data(
    outcome: ToolOutcome, before: Mapping[str, Any] | None, context: Mapping[str, Any], order: int | None = None
) -> str:
    """The record of how a call ended.

    `before`: a copy of the context from before the call, or None if the call cannot write to the context. `order`: which
    outcome of its turn it is, from 1, where records are not kept in the order in which they were made. Raises
    ConfigurationError if a context variable cannot be recorded.
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
        "error": None if outcome.error is None else _error_text(outcome.error),
        "still_running": outcome.still_running,
        "unknown": outcome.unknown,
        "order": order,
    }
    return _write({key: value for key, value in record.items() if value})


def apply_changes(record: Mapping[str, Any], context: dict[str, Any]) -> None:
    """Make the changes of `context` that the record of a call has."""
    _change(context, record.get("written", {}), record.get("removed", ()))


def recorded_outcome(record: Mapping[str, Any], agent: Agent | None) -> ToolOutcome:
    """The recorded outcome of a call. Its changes of the context are made by `apply_changes`."""
    content = record.get("content", "")
    error = RecordedToolError(record["error"]) if "error" in record else None
    result = None if error else Result(value=content, agent=agent, context_variables=record.get("context", {}))
    still_running, unknown = bool(record.get("still_running")), bool(record.get("unknown"))
    return ToolOutcome(content, result, error, still_running=still_running, unknown=unknown)


def _error_text(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - str() of the exception may raise
        return type(error).__name__


# --- the end ---


def response_data(response: Response, context: Mapping[str, Any]) -> str:
    """The record of a finished item. `context`: the context variables that it began with.

    Raises ConfigurationError if a context variable cannot be recorded.
    """
    written, removed = _recordable(context, response.context_variables)
    record = {
        "messages": response.messages,
        "agent": response.agent.name,
        "written": written,
        "removed": removed,
        "usage": {key: getattr(response.usage, key) for key in _USAGE},
        "stop": response.stop,
        "run_id": response.run_id,
    }
    calls: dict[str, list[Any]] = {"unknown_calls": response.unknown_calls, "waiting": response.waiting}
    sometimes = {**{key: [asdict(call) for call in found] for key, found in calls.items()}, "spent": response.spent}
    return _write(record | {key: value for key, value in sometimes.items() if value})


def recorded_response(record: Mapping[str, Any], agent: Agent, context: Mapping[str, Any]) -> Response:
    """The `Response` of a finished item. `context`: the context variables that the item begins with."""
    variables = copy_containers(context)
    _change(variables, record["written"], record["removed"])
    return Response(
        messages=record["messages"],
        agent=agent,
        context_variables=variables,
        usage=Usage(**record["usage"]),
        stop=record["stop"],
        run_id=record.get("run_id", ""),  # the first journals have none
        unknown_calls=[UnknownCall(**call) for call in record.get("unknown_calls", ())],
        waiting=[OpenCall(**call) for call in record.get("waiting", ())],
        spent=record.get("spent"),
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
        raise ConfigurationError(
            f"the context variable {place!r} cannot be recorded, because its key is not a str. Use a str, or run without "
            "a journal or durable runs"
        )
    if type(value) is dict:
        for key, item in cast("dict[object, object]", value).items():
            _check_json(item, f"{place}[{key!r}]" if isinstance(key, str) else key)
    elif type(value) is list:
        for position, item in enumerate(cast("list[object]", value)):
            _check_json(item, f"{place}[{position}]")
    elif not (value is None or type(value) in (str, int, float, bool)):
        raise ConfigurationError(
            f"the context variable {place} was set to {shown(value, 80)}, which cannot be recorded. A journal and durable "
            "runs record values that JSON can hold (dict with str keys, list, str, int, float, bool, None). Set the variable "
            "to such a value, or run without them"
        )

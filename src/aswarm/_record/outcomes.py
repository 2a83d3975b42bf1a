"""Converts completions, calls, context variables and responses to the fields of entries, and back for a replay.

The module also checks whether a value can be recorded. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from operator import itemgetter
from typing import Any, cast

from aswarm._run.call import Call
from aswarm._run.outcome import OutcomeInside, Returned, ToolOutcome
from aswarm._values.agent import Agent, Response, Result, UnknownCall
from aswarm._values.context import changes, context_error, context_faults, copy_containers
from aswarm._values.decisions import OpenCall
from aswarm._values.errors import ConfigurationError, ToolError
from aswarm._values.json import from_fields, jsonable
from aswarm._values.usage import Usage
from aswarm._wire.accumulator import Completion

from .facts import CallPlace

_HAS_VALUE = itemgetter(1)  # of an item of a dict: whether its value is true


class RecordedToolError(ToolError):
    """A tool call that failed in an earlier process. The text has the type and the message of the original error.

    It is also the error of a call that started in an earlier process, but has no recorded outcome.
    """


# --- completions ---


def recorded_chunk(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a recorded completion as one chunk. `fields`: the fields of its CompletionFinished."""
    message = {"tool_calls": None, **{key: value for key, value in fields["message"].items() if key != "sender"}}
    return Completion(message, fields["finish_reason"], from_fields(Usage, fields["usage"])).as_chunk()


# --- tool calls ---


def outcome_fields(call: Call, outcome: ToolOutcome, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a finished call that only a replay reads.

    `changed`: the fields "written" and "removed" of the context, see `TurnChanges`. Raises ConfigurationError if a context
    variable cannot be recorded.
    """
    merged = outcome.result.context_variables if outcome.result else {}
    check_json(merged)
    fields = {
        "parts": None if isinstance(outcome.content, str) else outcome.content,
        "agent": None if outcome.agent is None else outcome.agent.name,
        "context": merged,
        **changed,
        "unknown": outcome.unknown,
        "unknown_inside": [*map(asdict, call.unknown_inside)],
        "value": value.recorded if (value := call.value_of(outcome)) else None,
    }
    return dict(filter(_HAS_VALUE, fields.items()))


def waiting_fields(call: Call, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a call that waits, which only a replay reads. `changed`: see `outcome_fields`."""
    unknown = [*map(asdict, call.unknown_inside)]
    return {**changed, **({"unknown_inside": unknown} if unknown else {})}


def unknown_inside(outcome: Mapping[str, Any]) -> list[UnknownCall]:
    """Return the recorded calls inside a call whose outcome is not known."""
    return [from_fields(UnknownCall, fields) for fields in outcome.get("unknown_inside", ())]


def recorded_outcome(fields: Mapping[str, Any], outcome: Mapping[str, Any], agent: Agent | None) -> ToolOutcome:
    """Return the outcome of a recorded call. `fields`: the fields of its ToolCallFinished; `outcome`: see `outcome_fields`.

    `TurnChanges` applies the changes of the context variables.
    """
    content = outcome.get("parts", fields["content"])
    value = outcome.get("value")
    error = None if fields.get("error") is None else RecordedToolError(fields["error"])
    result = None if error else Result(value=content, agent=agent, context_variables=outcome.get("context", {}))
    still_running, unknown = bool(fields.get("still_running")), bool(outcome.get("unknown"))
    returned_value = None if value is None else Returned.from_record(content, value)
    return OutcomeInside(content, result, error, still_running=still_running, unknown=unknown, returned=returned_value)


# --- the context variables of a turn ---


class TurnChanges:
    """Records and replays the changes that the calls of one turn make to the context variables.

    A function or a middleware may write at any time, and concurrent calls share the context variables. So an entry contains all
    changes since the last entry with changes. A replay applies the changes in the recorded order, even if it reaches the calls in
    another order. `recorded`: the places and changes of the calls, in recorded order. `context`: at the start of the turn.
    """

    def __init__(
        self, recorded: Iterable[tuple[CallPlace, Mapping[str, Any]]] = (), context: Mapping[str, Any] | None = None
    ) -> None:
        self._recorded = list(recorded)
        self._order = {place: at for at, (place, _) in enumerate(self._recorded)} if self._recorded else {}
        self._made = 0  # the number of recorded changes that were applied to the context
        # The context when changes were last recorded. Most runs have no context variables, and nothing to copy.
        self._before: dict[str, Any] = copy_containers(context) if context else {}
        # The recorded changes of `Result`s, which the run merges later, and their copies: the next call may change a merged value.
        self._results: list[tuple[Mapping[str, Any], dict[str, Any]]] = []

    def repeat(self, context: dict[str, Any], place: CallPlace | None = None) -> None:
        """Apply the recorded changes, up to the call at this place. By default, apply all changes."""
        self._repeat(context, len(self._recorded) if place is None else self._order.get(place, -1) + 1)

    def repeat_before_code(self, context: dict[str, Any], position: int) -> None:
        """Apply the recorded changes before the first call inside the code at this position, because the code runs again."""
        inside = (at for at, (place, _) in enumerate(self._recorded) if place[0] == position and place[1] is not None)
        self._repeat(context, next(inside, len(self._recorded)))

    def _repeat(self, context: dict[str, Any], until: int) -> None:
        for _, outcome in self._recorded[self._made : until]:
            self.apply(context, outcome)
        self._made = max(self._made, until)

    def apply(self, context: dict[str, Any], recorded: Mapping[str, Any]) -> None:
        """Apply recorded changes. They are not recorded again."""
        for target in (context, self._before):
            change(target, copy_containers(recorded.get("written", {})), recorded.get("removed", ()))

    def note_result(self, changed: Mapping[str, Any]) -> None:
        """Note the recorded changes of a `Result`, so that they are not recorded again when the run has merged them."""
        if changed:
            self._results.append((changed, copy_containers(changed)))

    def changed(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields for the changes since they were last recorded; empty if there is no change.

        Raises ConfigurationError if a context variable cannot be recorded.
        """
        if not (context or self._before):  # most runs have no context variables
            return {}
        results, self._results = self._results, []
        for changed, copied in results:  # in the order of the calls, in which they are merged
            merged = {key: copied[key] for key, value in changed.items() if key in context and context[key] is value}
            self._before.update(merged)
            if not merged:
                self._results.append((changed, copied))
        written, removed = recordable_changes(self._before, context)
        if not (written or removed):
            return {}
        self._before = copy_containers(context)
        return {"written": written, "removed": removed}


# --- responses ---


def response_fields(response: Response, context: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of a response. `context`: the context variables that the run started with.

    Raises ConfigurationError if a context variable cannot be recorded.
    """
    written, removed = recordable_changes(context, response.context_variables)
    fields = {
        "messages": response.messages,
        "agent": response.agent.name,
        "written": written,
        "removed": removed,
        "usage": asdict(response.usage),
        "stop": response.stop,
        "run_id": response.run_id,
        "unknown_calls": [*map(asdict, response.unknown_calls)],
        "waiting": [*map(asdict, response.open_calls)],
        "spent": response.spent,
    }
    return dict(filter(_HAS_VALUE, fields.items()))


def recorded_response(fields: Mapping[str, Any], agent: Agent, context: Mapping[str, Any]) -> Response:
    """Return the response from its data. `context`: its context variables before the changes "written" and "removed"."""
    variables = copy_containers(context)
    change(variables, fields.get("written", {}), fields.get("removed", ()))
    return Response(
        messages=fields.get("messages", []),
        agent=agent,
        context_variables=variables,
        usage=from_fields(Usage, fields["usage"]),
        stop=fields["stop"],
        run_id=fields["run_id"],
        unknown_calls=[from_fields(UnknownCall, call) for call in fields.get("unknown_calls", ())],
        open_calls=[from_fields(OpenCall, call) for call in fields.get("waiting", ())],
        spent=fields.get("spent"),
    )


# --- context variables ---


def change(context: dict[str, Any], written: Mapping[str, Any], removed: Iterable[str]) -> None:
    for key in removed:
        context.pop(key, None)
    context.update(written)


def recordable_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the changed items and the removed keys. Raises ConfigurationError for a value that JSON cannot represent."""
    written, removed = changes(before, after)
    check_json({**written, **dict.fromkeys(removed)})
    return written, removed


def recordable(context: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a copy of context variables for an entry. If they are JSON data, a replay gets equal data, also NaN and any text.

    `as_json` converts such values for readers. Other values become JSON data here, and the run cannot be continued.
    """
    is_exact = not any(context_faults(context))
    return cast("dict[str, Any]", copy_containers(context) if is_exact else jsonable(context))


def check_json(context: Mapping[Any, Any]) -> None:
    """Raise ConfigurationError if JSON cannot represent a context variable."""
    for _, fault in context_faults(context):
        raise ConfigurationError(context_error(fault, "a recorded run"))

"""What readers get of a log: `everything`, or what a user of the service should see.

The log has the history, the context variables and the errors as they are. A reader gets them only if the service says so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from aswarm._json import is_object

from ._entries import Entry

Show: TypeAlias = Callable[[Entry], Entry | None]

_HIDDEN = frozenset({"RequestSent", "MessagesRecorded"})


def everything(entry: Entry) -> Entry | None:
    """The entry as it is: for the page of a developer."""
    return entry


def answers_with(context: Collection[str] = ()) -> Show:
    """A `show` with what a user should see, and with the context variables that `context` names.

    Requests as sent, the recorded history and other context variables are left out. An error is its public text, and of the
    error of a tool only its type is left: the text for the model stands in `content`. What functions return is shown.
    """
    keys = frozenset(context)

    def show(entry: Entry) -> Entry | None:
        if entry.type in _HIDDEN:
            return None
        if entry.type == "ContextChanged":
            return _with_keys(entry, keys)
        changed = _shown_fields(entry, keys)
        return entry if changed is None else _with(entry, changed)

    return show


answers: Show = answers_with()
"""What readers of a run get by default: the answers and the calls, without context variables and error texts."""


def _with(entry: Entry, fields: Mapping[str, Any]) -> Entry:
    return Entry(entry.seq, entry.at, entry.type, fields, entry.first)


def _with_keys(entry: Entry, keys: frozenset[str]) -> Entry | None:
    changes = {key: value for key, value in entry.fields["changes"].items() if key in keys}
    removed = [key for key in entry.fields["removed"] if key in keys]
    return _with(entry, {**entry.fields, "changes": changes, "removed": removed}) if changes or removed else None


def _shown_fields(entry: Entry, keys: frozenset[str]) -> dict[str, Any] | None:
    """The fields without what readers do not get; None if there is nothing to leave out."""
    fields = dict(entry.fields)
    match entry.type:
        case "RunStarted":
            _keep_context(fields, keys)
        case "ToolCallFinished" if fields["error"] is not None:
            fields["error"] = fields["error"].partition(":")[0]
        case "ToolProgress" if is_object(value := fields["value"]):
            # The progress of an agent as a tool is an event of its run, which may have a response.
            fields["value"] = {key: each for key, each in value.items() if key not in ("response", "error")}
        case "RunFinished" | "RunFailed" | "RunStopped":
            if (error := fields.get("error")) is not None:
                fields["error"] = {key: value for key, value in error.items() if key != "message"}
            if fields.get("response") is not None:
                fields["response"] = dict(fields["response"])
                _keep_context(fields["response"], keys)
        case _:
            return None
    return fields


def _keep_context(fields: dict[str, Any], keys: frozenset[str]) -> None:
    context: Mapping[str, Any] = fields.pop("context_variables", {})
    if keys:
        fields["context_variables"] = {key: value for key, value in context.items() if key in keys}

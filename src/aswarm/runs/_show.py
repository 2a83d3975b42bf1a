"""Filters for the entries that a client may see: `show_everything`, or `show_answers` for users of a service.

The log has the unfiltered history, context variables and errors. Readers get them only if the service allows it.

Security: Readers get no texts of errors, and only the context variables in `client_context`, unless `show` says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, get_args

from aswarm._record.entries import ENDINGS, Entry
from aswarm._values.decisions import public_data
from aswarm._values.errors import ConfigurationError
from aswarm._values.events import Event
from aswarm._values.json import is_array, is_object
from aswarm._values.messages import WAITING, Message

Show: TypeAlias = Callable[[Entry], Entry | None]
"""Type of a `show` function: it gets an entry of the log and returns the entry for readers, or None to hide the entry."""

# Not a list of the hidden types: during an upgrade, a process of a newer version may write a type that is not for users.
_SHOWN = frozenset({"ToolCallWithdrawn", "TurnFinished", *(event.__name__ for event in get_args(Event))})
_FILTERED = frozenset({"RunStarted", "ToolCallFinished", "TurnFinished", "ToolProgress", "ContextChanged", *ENDINGS})
# The text of a tool message about an exception. Users may see group 1, which ends with the type of the exception. A line about
# changed arguments may come before the type.
_EXCEPTION = re.compile(r"((?:\(run with arguments changed by the user: [^\n]*\)\n)?Error: [^\W\d]\w*): .*", re.DOTALL)

# The traceback of code that failed: its last line may have the text of an exception. Users may see group 1, which ends with its type.
_CODE_FAILED = re.compile(
    r'(Traceback \(most recent call last\):\n  File "code\.py"[^\n]*\n(?:  [^\n]*\n)*[^\W\d]\w*): '
)


def show_everything(entry: Entry) -> Entry | None:
    """Return the entry unchanged. This `show` is for developers."""
    return entry


def show_answers_with(context: Collection[str] = ()) -> Show:
    """Return a `show` for users of a service. It includes only the context variables named in `context`.

    This filter removes requests, the recorded history, all other context variables, and entries of types that only a newer version
    of aswarm knows. An error of a run keeps only its public text. An exception of a tool keeps only its type, in `error` and in
    `content`. The text of a `ToolError` stays in `content`, because it is written for the model. Results of functions stay.
    """
    keys = frozenset(context)

    def show(entry: Entry) -> Entry | None:
        if entry.type not in _FILTERED:  # most entries are deltas
            return entry if entry.type in _SHOWN else None
        if entry.type == "ContextChanged":
            return _with_keys(entry, keys)
        changed = _shown_fields(entry, keys)
        return entry if changed is None else replace(entry, fields=changed)

    return show


show_answers: Show = show_answers_with()
"""The default `show`: answers and calls, without context variables and error texts."""


def check_show(show: object) -> None:
    """Raise ConfigurationError if `show` is not a function."""
    if not callable(show):
        raise ConfigurationError(
            f"show must be a function, such as show_answers or show_everything, not {type(show).__name__}"
        )


def _with_keys(entry: Entry, keys: frozenset[str]) -> Entry | None:
    changes = {key: value for key, value in entry.fields["changes"].items() if key in keys}
    removed = [key for key in entry.fields["removed"] if key in keys]
    fields = {**entry.fields, "changes": changes, "removed": removed}
    return replace(entry, fields=fields) if changes or removed else None


def _shown_fields(entry: Entry, keys: frozenset[str]) -> dict[str, Any] | None:
    """Return the fields that readers may see; None if there is nothing to remove."""
    fields = dict(entry.fields)
    match entry.type:
        case "RunStarted":
            _keep_context(fields, keys)
            if "edited" in fields:
                fields["edited"] = [name for name in fields["edited"] if name in keys]
        case "ToolCallFinished" if fields["error"] is not None:
            fields["error"] = fields["error"].partition(":")[0]
            fields["content"] = _without_exception(fields["content"])
        case "TurnFinished":
            fields["answers"] = [*map(_shown_answer, fields["answers"])]
        case "ToolProgress":
            fields["value"] = _shown_progress(fields["value"])
        case "RunFinished" | "RunFailed" | "RunStopped":
            if (error := fields.get("error")) is not None:
                fields["error"] = {key: value for key, value in error.items() if key != "message"}
            if fields.get("response") is not None:
                fields["response"] = dict(fields["response"])
                _keep_context(fields["response"], keys)
                if "messages" in fields["response"]:
                    fields["response"]["messages"] = shown_messages(fields["response"]["messages"])
        case _:
            return None
    return fields


def shown_messages(messages: Iterable[Message]) -> list[Message]:
    """Return the messages without the texts of exceptions, and with the public data of waiting calls."""
    return [*map(_shown_message, messages)]


def _shown_message(message: Message) -> Message:
    if is_array(entries := message.get(WAITING)):
        shown = [{**entry, "data": public_data(entry["data"])} if "data" in entry else entry for entry in entries]
        message = {**message, WAITING: shown}
    return {**message, "content": _without_exception(message["content"])} if message["role"] == "tool" else message


def _shown_answer(answer: Any) -> Any:
    return {**answer, "content": _without_exception(answer["content"])} if is_object(answer) else answer


def _shown_progress(value: Any) -> Any:
    """Return the filtered progress of a function. If the tool is an agent, the progress is an event of its run."""
    if not is_object(value):
        return value
    masks = {"content": _without_exception, "value": _shown_progress}
    kept = {key: item for key, item in value.items() if key not in ("response", "error")}
    return {key: masks[key](item) if key in masks else item for key, item in kept.items()}


def _without_exception(content: Any) -> Any:
    if not isinstance(content, str):
        return content
    if masked := _EXCEPTION.fullmatch(content):
        return masked[1]
    return content[: failed.end(1)] if (failed := _CODE_FAILED.search(content)) else content


def _keep_context(fields: dict[str, Any], keys: frozenset[str]) -> None:
    context: Mapping[str, Any] = fields.pop("context_variables", {})
    if keys:
        fields["context_variables"] = {key: value for key, value in context.items() if key in keys}

"""The form in which a store holds values: JSON text. Decides what can be stored; never reads or writes a store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from aswarm._agent import UnknownCall
from aswarm._context import copy_containers
from aswarm._errors import ConfigurationError
from aswarm._json import is_object, shown
from aswarm._messages import Message

_LONGEST_ID = 500
_SHOWN = 80
# ASCII, because neither UTF-8 nor PostgreSQL takes half of a surrogate pair, which a model may have sent. A provider's
# client may put objects into a message; they are stored in the form in which they would be sent.
_encode = json.JSONEncoder(separators=(",", ":"), default=to_jsonable_python).encode


def checked_id(conversation_id: object) -> str:
    """The id. Raises ConfigurationError if no store can hold it."""
    if not (isinstance(conversation_id, str) and 0 < len(conversation_id) <= _LONGEST_ID):
        raise ConfigurationError(
            f"the id of a conversation must be a str of 1 to {_LONGEST_ID} characters, not {shown(conversation_id, _SHOWN)}"
        )
    try:
        conversation_id.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"the id {shown(conversation_id, _SHOWN)} cannot be stored: {error.reason}. Use text that UTF-8 can encode"
        ) from error
    if "\0" in conversation_id:
        raise ConfigurationError(
            f"the id {shown(conversation_id, _SHOWN)} has a NUL character, which no database takes"
        )
    return conversation_id


def message_text(message: Message) -> str:
    """A message as JSON. Raises ConfigurationError if it has no such form."""
    try:
        return _encode(message)
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as error:
        raise ConfigurationError(
            f"a message of the role {message.get('role')!r} cannot be stored, because it is not JSON: {error}"
        ) from error


def context_text(context: Mapping[str, Any]) -> str:
    """Context variables as JSON. `faults` has found none in them."""
    return _encode(dict(context))


def calls_text(calls: Sequence[UnknownCall]) -> str:
    """Unknown calls as JSON."""
    return _encode([asdict(call) for call in calls])


def calls_in(text: str) -> list[UnknownCall]:
    """The unknown calls in a text of `calls_text`."""
    return [UnknownCall(**call) for call in json.loads(text)]


def faults(context: Mapping[Any, Any]) -> Iterator[tuple[Any, str]]:
    """The context variables that are not JSON: the name of each, and what is wrong."""
    for key, value in context.items():
        try:
            fault = _fault(value, str(key)) if isinstance(key, str) else f"the name {shown(key, _SHOWN)} is not a str"
        except RecursionError:
            fault = f"{key} is nested too deeply, or contains itself"
        if fault:
            yield key, fault


def _fault(value: object, place: str) -> str | None:
    """What JSON would change in the value, or None. A tuple would come back as a list: a function would get another type."""
    if type(value) is dict:
        for key, item in cast("dict[object, object]", value).items():
            if not isinstance(key, str):
                return f"{place} has the key {shown(key, _SHOWN)}, which is not a str"
            if fault := _fault(item, f"{place}[{key!r}]"):
                return fault
    elif type(value) is list:
        for position, item in enumerate(cast("list[object]", value)):
            if fault := _fault(item, f"{place}[{position}]"):
                return fault
    elif not (value is None or type(value) in (str, int, float, bool)):
        return f"{place} is {shown(value, _SHOWN)}"
    return None


def context_error(fault: str) -> str:
    """The text of the error for a context variable that is not JSON."""
    return (
        f"a conversation keeps context variables as JSON (dict with str keys, list, str, int, float, bool, None), but {fault}. "
        "Set the variable to such a value, and keep a client or a connection in a closure of the function that uses it"
    )


def checked_context(context: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of context variables that are JSON. Raises ConfigurationError for others."""
    if not (context is None or is_object(context)):
        raise ConfigurationError(f"context_variables must be a dict, not {type(context).__name__}")
    copied: dict[str, Any] = copy_containers(context or {})
    for _, fault in faults(copied):
        raise ConfigurationError(context_error(fault))
    return copied

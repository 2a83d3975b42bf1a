"""Converts values to JSON text for a store, and decides which values can be stored. It does no I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from aswarm._values.context import check_context, context_error, context_faults, copy_containers
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import shown, whole_characters
from aswarm._values.messages import Message

_MAX_ID_LENGTH = 500
_DATABASE_TEXT = re.compile("[^\\0\ud800-\udfff]*")
_SHOWN = 80
# ASCII, because a model may send half a surrogate pair, which neither UTF-8 nor PostgreSQL accepts. `to_jsonable_python`,
# because the client of a provider may put objects into a message.
encode = json.JSONEncoder(separators=(",", ":"), default=to_jsonable_python).encode


def checked_id(conversation_id: object) -> str:
    """Return the id. Raises ConfigurationError if no store can keep it."""
    if not (isinstance(conversation_id, str) and 0 < len(conversation_id) <= _MAX_ID_LENGTH):
        raise ConfigurationError(
            f"the id of a conversation must be a str of 1 to {_MAX_ID_LENGTH} characters, not {shown(conversation_id, _SHOWN)}"
        )
    try:
        conversation_id.encode()
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"the id {shown(conversation_id, _SHOWN)} cannot be stored: {error.reason}. Use text that UTF-8 can encode"
        ) from error
    if "\0" in conversation_id:
        raise ConfigurationError(
            f"the id {shown(conversation_id, _SHOWN)} has a NUL character, which no database accepts; remove it"
        )
    return conversation_id


def database_text(text: str) -> str:
    """Return the text with U+FFFD for halves of surrogate pairs and for NUL, which not every database accepts."""
    return whole_characters(text).replace("\0", "\ufffd")


def is_database_text(*texts: str | None) -> bool:
    """Return whether every database accepts the texts. None is accepted."""
    return all(map(_DATABASE_TEXT.fullmatch, filter(None, texts)))


def message_text(message: Message) -> str:
    """Return a message as JSON text. Raises ConfigurationError if the message is not JSON."""
    try:
        return encode(message)
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as error:
        raise ConfigurationError(
            f"a message of the role {message.get('role')!r} cannot be stored, because it is not JSON: {error}"
        ) from error


def checked_context(context: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the context variables. Raises ConfigurationError if they are not JSON."""
    if context is None:
        return {}
    check_context(context)
    copied: dict[str, Any] = copy_containers(context)
    for _, fault in context_faults(copied):
        raise ConfigurationError(context_error(fault))
    return copied

"""Converts the model's text to arguments, and the result of a function to text. The module never calls a function.

Security: The arguments of a call are validated before the function runs; invalid arguments never reach it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_jsonable_python

from aswarm._values.agent import Agent, Result
from aswarm._values.content import File, Image, Part, text_part
from aswarm._values.errors import ToolArgumentsError
from aswarm._values.json import finite, is_object, jsonable, shown, whole_characters
from aswarm._values.messages import as_plain
from aswarm._values.text import sendable, whole_escapes

from .tool import Tool

_SHOWN = 1000  # at most this many characters of invalid arguments are quoted to the model


def parse_arguments(text: str) -> dict[str, Any]:
    """Return the arguments as a dict. An empty text means no arguments. Raises ToolArgumentsError with the parser's reason."""
    if not text.strip():
        return {}
    try:
        arguments = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise ToolArgumentsError(f"the arguments are not JSON: {error}; you sent {shown(text, _SHOWN)}") from error
    if not is_object(arguments):
        kind = type(arguments).__name__
        raise ToolArgumentsError(f"the arguments must be a JSON object, not {kind}; you sent {shown(text, _SHOWN)}")
    return dict(arguments)


def valid_arguments(tool: Tool[..., Any], text: str) -> dict[str, Any]:
    """Return the arguments of a call, validated and converted. Raises ToolArgumentsError."""
    # For most calls, one pass over the text is enough. But pydantic accepts NaN and Infinity, which JSON does not have.
    if tool._schema.validate_json is not None and "NaN" not in text and "Infinity" not in text:
        try:
            return tool._schema.validate_json(text)
        except (ValidationError, UnicodeEncodeError):
            pass
    # A guard or an old history may have halves of surrogate pairs, which no parser accepts.
    return tool._schema.validate(parse_arguments(whole_escapes(whole_characters(text))))


def are_valid(tool: Tool[..., Any], text: str) -> bool:
    """Return whether the function can be called with these arguments."""
    try:
        valid_arguments(tool, text)
    except Exception:  # noqa: BLE001 - a validator of the user may raise anything; the call will report it later
        return False
    return True


def arguments_or_text(text: str) -> dict[str, Any] | str:
    """Return the arguments as a dict, or the text itself if it is not a JSON object."""
    try:
        return parse_arguments(text)
    except ToolArgumentsError:
        return text


def as_result(value: object) -> Result:
    """Convert the return value of a function to a `Result`. The `value` of the result is the content of the tool message.

    The content is a text. If the function returned images or files, it is a list of parts. If the conversion to text fails,
    the exception propagates.
    """
    match value:
        case str():
            return Result(value=to_text(value))
        case Result():
            return value.model_copy(update={"value": _content(value.value)})
        case Agent():
            return Result(value=json.dumps({"assistant": value.name}, ensure_ascii=False), agent=value)  # pyright: ignore[reportUnknownArgumentType]
        case _:
            return Result(value=_content(value))


def _content(value: object) -> str | list[Part]:
    returned: Any = value
    items: Sequence[Any] = returned if isinstance(value, list | tuple) else (returned,)
    if not any(isinstance(item, Image | File) for item in items):
        return to_text(returned)
    return [item.part if isinstance(item, Image | File) else text_part(to_text(item)) for item in items]


def to_text(value: object) -> str:
    """Convert a value to text for the model, by one rule for a value by itself and inside a list or a dict.

    A str stays, except for a half of a surrogate pair; see `sendable`. Lists, tuples, sets, dicts, dataclasses and models are
    JSON (not ASCII-escaped). Enums have the text of their value, dates and other types of one text have this text. Numbers, bool,
    None and other objects have their `str()`, as in Swarm. In JSON, NaN and the infinities become texts.
    """
    if isinstance(value, str):
        return sendable(str.__str__(value))  # also for a member of a str Enum, which has its own `__str__`
    is_iterator = isinstance(value, Iterator)  # reading it may never end
    data = None if is_iterator else _as_json_data(value)
    if isinstance(data, dict | list):
        return sendable(json.dumps(finite(data), ensure_ascii=False))
    is_own_text = isinstance(data, str) or isinstance(value, Enum)
    return sendable(str(data if is_own_text else value))


def _list_or_text(value: object) -> object:
    # pydantic 2.11.0 does not know deques.
    return [*value] if isinstance(value, deque) else str(value)  # pyright: ignore[reportUnknownVariableType]


def _as_json_data(value: object) -> Any:
    try:
        return to_jsonable_python(value, fallback=_list_or_text)
    except UnicodeEncodeError:  # pydantic refuses a key with half a surrogate pair; `sendable` writes its escape
        plain = TypeAdapter(type(value)).dump_python(value) if is_dataclass(value) else as_plain(value)
        if is_object(plain):
            return {str(key): _as_json_data(item) for key, item in plain.items()}
        if isinstance(plain, Collection) and not isinstance(plain, str | bytes | bytearray):  # such as a deque
            return [*map(_as_json_data, plain)]  # pyright: ignore[reportUnknownArgumentType]
        return jsonable(plain)
    except UnicodeDecodeError as error:
        raise ValueError(
            "the result has bytes that are not text; return an Image or a File, by itself or in a list of the result"
        ) from error

"""Arguments from the model's text, and text for the model from a function's result.

Decides conversions. Never calls a function.
"""

from __future__ import annotations

import dataclasses
import json
import types
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json, to_jsonable_python

from aswarm._agent import Agent, Result
from aswarm._errors import ToolArgumentsError
from aswarm._json import is_object

from .schema import CONTEXT
from .tool import Tool, reads_context, takes_context


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments as a dict; empty text means no arguments. Raises ToolArgumentsError with the parser's reason."""
    if not text.strip():
        return {}
    try:
        arguments = from_json(text)
    except ValueError as error:
        raise ToolArgumentsError(f"the arguments are not JSON: {error}") from error
    if not is_object(arguments):
        raise ToolArgumentsError(f"the arguments must be a JSON object, not {type(arguments).__name__}")
    return dict(arguments)


def as_result(value: object) -> Result:
    """The value that a function returned, as a `Result` whose value is the text for the model.

    Raises the error of a value that cannot be turned into text.
    """
    match value:
        case Result():
            return value.model_copy(update={"value": to_text(value.value)})
        case Agent():
            return Result(value=json.dumps({"assistant": value.name}, ensure_ascii=False), agent=value)
        case _:
            return Result(value=to_text(value))


def to_text(value: object) -> str:
    """A value as the model reads it: a str as it is, data as JSON (not ASCII-escaped), everything else `str()`."""
    if isinstance(value, str):
        text = str.__str__(value)  # the text itself, also for an Enum whose members are str
        text.encode()  # half a surrogate pair cannot be sent: fail here, not in the next request
        return text
    if isinstance(value, dict | list | BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return json.dumps(to_jsonable_python(value, fallback=str), ensure_ascii=False)
    return str(value)


def sendable(text: str) -> str:
    """The text, with half surrogate pairs, which UTF-8 cannot carry, written as escapes."""
    return text.encode(errors="backslashreplace").decode()


def bind_context(tool: Tool[..., Any], arguments: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of the call. A function that asks for a `Mapping` gets a read-only view of `context`."""
    if not takes_context(tool):
        return arguments
    return {**arguments, CONTEXT: types.MappingProxyType(context) if reads_context(tool) else context}

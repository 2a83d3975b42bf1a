"""The result of a call as a Python value of the code, and the result of the code as text. No I/O.

The code gets the value that the function returned, as JSON data. If a guard or another middleware has replaced the content of the
call, the code gets this content.
"""

from __future__ import annotations

import ast
import json
from typing import Any, Literal, TypeAlias

from pydantic_core import from_json, to_jsonable_python

from aswarm._values.json import finite, whole_characters
from aswarm._values.text import whole_escapes

# How a text becomes a value: it is a text; it is data, because the return hint excludes texts; the return hint allows both, so it
# is a text; or there is no hint, and it is data if it is an object or an array.
Reading: TypeAlias = Literal["text", "data", "both", "any"]
_CUT = "\n[cut off: {} of {} characters]"


def value_of(value: Any, text: str, reading: Reading) -> Any:
    """Return the value of a call for the code. `value`: the returned value as JSON data; `text`: its result for the model."""
    if not isinstance(value, str):
        return text if reading == "text" else value
    return value if reading in ("text", "both") else _data_of(text, reading)


def _data_of(text: str, reading: Reading) -> Any:
    if reading == "any" and text[:1] not in ("{", "["):
        return text
    try:
        return from_json(whole_escapes(text))  # the sandbox has no halves of surrogate pairs
    except ValueError:
        return _literal(text) if reading == "data" else text


def _literal(text: str) -> Any:
    # A tuple, a set, None and the booleans have their Python form in a tool message.
    try:
        return ast.literal_eval(whole_escapes(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def arguments_text(arguments: dict[str, Any]) -> str:
    """Return the arguments of a call as JSON text. Raises ValueError for values without a JSON form."""
    return whole_characters(
        json.dumps(to_jsonable_python(arguments), ensure_ascii=False)
    )  # pydantic refuses deep nesting


def result_text(printed: str, value: Any, limit: int) -> str:
    """Return the result of the code for the model: the printed text, then the value of the last expression."""
    parts = [part for part in (printed.rstrip("\n"), "" if value is None else _text(value)) if part]
    return cut("\n".join(parts) or "(the code printed nothing, and its last line has no value)", limit)


def cut(text: str, limit: int) -> str:
    """Return the text with at most `limit` characters, and a note if it was longer."""
    return text if len(text) <= limit else text[:limit] + _CUT.format(limit, len(text))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(finite(to_jsonable_python(value, fallback=repr)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return f"(a value of the type {type(value).__name__}, which cannot be shown)"

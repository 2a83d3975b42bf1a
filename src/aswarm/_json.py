"""JSON-like data: type guards for objects, arrays and counts, any value as JSON data, and the text of a value in a message."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard, cast

from pydantic_core import to_jsonable_python

from ._text import one_line


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a dict, or something that reads like one."""
    return isinstance(value, Mapping)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether it is a list (or a tuple, which reads like one)."""
    return isinstance(value, list | tuple)


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number from 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def shown(value: object, limit: int) -> str:
    """The value as it would be written in Python, on one line of at most `limit` characters."""
    try:
        return one_line(repr(value), limit)
    except Exception:  # noqa: BLE001 - too deeply nested, or of a class whose repr fails
        return f"<{type(value).__name__}>"


def is_json(value: object) -> bool:
    """Whether the value consists of JSON types only. A subclass of one does not count: it may mean more."""
    if type(value) is dict:
        return all(map(is_json, cast("dict[object, object]", value).values()))
    if type(value) is list:
        return all(map(is_json, cast("list[object]", value)))
    return value is None or type(value) in (str, int, float, bool)


def jsonable(value: Any) -> Any:
    """The value as JSON data. A value that JSON does not know is text; so is a container that contains itself."""
    try:
        return _finite(to_jsonable_python(value, fallback=str))
    except ValueError:  # a container that contains itself, or one that is nested too deeply
        return _container_text(value)


def _container_text(value: object) -> str:
    try:
        return str(value)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"


def _finite(value: Any) -> Any:
    """The value with infinities and NaN as text: JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if is_object(value):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if is_array(value) else value

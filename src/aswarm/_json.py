"""JSON-like data: type guards for objects and arrays, and the text of a value in an error message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard, cast

from ._text import one_line


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a dict, or something that reads like one."""
    return isinstance(value, Mapping)


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether it is a list (or a tuple, which reads like one)."""
    return isinstance(value, list | tuple)


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

"""JSON-like data: type guards for objects, arrays and counts, any value as JSON data, and the text of a value in a message."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard, cast

from pydantic_core import ValidationError, to_jsonable_python

from ._text import one_line

_MOST_BITS = 10_000  # Python refuses to write a number of more than 4,300 digits
_VALUE_LENGTH = 120  # how many characters of a wrong value the model is shown
_DEEPEST = 200  # pydantic and the json module write what is nested a little more deeply


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether it is a dict, or something that reads like one."""
    return type(value) is dict or isinstance(value, Mapping)  # the second check takes ten times as long


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Whether it is a list (or a tuple, which reads like one)."""
    return isinstance(value, list | tuple)


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number from 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_count_from_0(value: object) -> TypeGuard[int]:
    """Whether it is a whole number from 0."""
    return is_count(value) or (type(value) is int and value == 0)


def shown(value: object, limit: int) -> str:
    """The value as it would be written in Python, on one line of at most `limit` characters."""
    try:
        return one_line(repr(value), limit)
    except Exception:  # noqa: BLE001 - too deeply nested, or of a class whose repr fails
        return f"<{type(value).__name__}>"


def faults_of(error: ValidationError, whole: str) -> list[str]:
    """What pydantic found wrong with data of a model, for the model: one line for each fault. `whole`: what the data are."""
    return [_fault(details, whole) for details in error.errors(include_url=False)]


def _fault(details: Any, whole: str) -> str:
    place = ".".join(map(str, details["loc"])) or whole
    given = "" if details["type"] == "missing" else f" (got {shown(details['input'], _VALUE_LENGTH)})"
    return " ".join(f"{place}: {details['msg']}{given}".split())  # on one line, also where message or value has several


def is_json(value: object) -> bool:
    """Whether the value consists of JSON types only. A subclass of one does not count: it may mean more."""
    if type(value) is dict:
        return all(map(is_json, cast("dict[object, object]", value).values()))
    if type(value) is list:
        return all(map(is_json, cast("list[object]", value)))
    return value is None or type(value) in (str, int, float, bool)


def jsonable(value: Any) -> Any:
    """The value as JSON data that any encoder takes.

    A value that JSON lacks changes alone: bytes are base64, infinities and NaN are text, and so is an object. Half a
    surrogate pair is U+FFFD. A container that contains itself, or is nested too deeply, is text as a whole.
    """
    try:
        return _as_data(value, _DEEPEST)
    except Exception:  # noqa: BLE001 - too deep, or a container of a class that cannot be read
        return _text_of(value)


def _as_data(value: Any, depth: int) -> Any:
    """The value as JSON data. Raises ValueError if it is nested more deeply; a container that contains itself is."""
    if value is None or type(value) in (str, int, float, bool):
        return _writable(value)
    if not depth:
        raise ValueError("nested too deeply")
    if is_object(value):
        return {_key(key): _as_data(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_data(item, depth - 1) for item in cast("Iterable[Any]", value)]
    return _as_data(_without_classes(value), depth - 1)


def _writable(value: str | float | None) -> str | float | None:
    """A value of a JSON type, or its text if encoders refuse it."""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or value.bit_length() <= _MOST_BITS else hex(value)


def _key(key: Any) -> str:
    if type(key) is str:
        return _encodable(key)
    found = _without_classes({key: None})  # a dict, or text if the key has no form as a key
    return next(iter(found)) if is_object(found) else _text_of(key)


def _without_classes(value: Any) -> Any:
    try:
        return to_jsonable_python(value, bytes_mode="base64", fallback=_text_of)
    except Exception:  # noqa: BLE001 - a class decides what it raises when it is serialized
        return _text_of(value)


def _text_of(value: object) -> str:
    try:
        return _encodable(str(value))
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    except Exception:  # noqa: BLE001 - a class decides what its `__str__` raises
        return f"<{type(value).__name__}>"


def _encodable(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair: no encoding takes one."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

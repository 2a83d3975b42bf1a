"""JSON-like data: type guards for objects, arrays and counts, any value as JSON data, and short texts of values.

Security: aswarm stores JSON and texts: it neither unpickles nor executes stored data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields as fields_in
from itertools import chain
from typing import Any, TypeGuard, TypeVar, cast

from pydantic_core import ValidationError, to_json, to_jsonable_python

from .text import AS_RESOURCE, one_line, sendable

T = TypeVar("T")

_MOST_BITS = 10_000  # about 3,000 digits; Python raises ValueError for the text of a number with more than 4,300 digits
_VALUE_LENGTH = 120  # the length of a wrong value in a text for the model
_SCALARS = frozenset({int, bool, float, type(None)})
# A depth that pydantic and the json module can write. Checks of data end here and not with a RecursionError: a collection of
# garbage near the limit of Python breaks finalizers of other objects (a temporary file then stays).
DEEPEST = 200


def is_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether the value is a dict or another mapping."""
    return type(value) is dict or isinstance(value, Mapping)  # the second check takes ten times as long


def is_array(value: object) -> TypeGuard[list[Any]]:
    """Return whether the value is a list or a tuple. The type guard names only list: both are read in the same way."""
    return isinstance(value, list | tuple)


def is_zero(value: object) -> bool:
    """Return whether the value is empty, 0, false or null, or an object that has only such values.

    Servers in Go may send the zero value of a type for a field that they do not use. It means that the field is absent.
    """
    return all(map(is_zero, value.values())) if is_object(value) else not value


def is_count(value: object) -> TypeGuard[int]:
    """Return whether the value is a whole number from 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_count_from_0(value: object) -> TypeGuard[int]:
    """Return whether the value is a whole number from 0."""
    return is_count(value) or (type(value) is int and value == 0)


def from_fields(kind: type[T], fields: Mapping[str, Any]) -> T:
    """Return an object of a dataclass from stored fields. Ignore fields that only a newer version of aswarm knows."""
    names = {field.name for field in fields_in(cast("Any", kind))}
    return kind(**{name: value for name, value in fields.items() if name in names})


def shown(value: object, limit: int) -> str:
    """Return the `repr` of the value, on one line of at most `limit` characters."""
    try:
        return one_line(repr(value), limit)
    except Exception:  # noqa: BLE001 - nested too deeply, or its __repr__ raises
        return f"<{type(value).__name__}>"


def as_json_or_resource(value: object) -> str:
    """Return the remedy for a context variable that is not JSON. The text does not contain the value, which may be a secret."""
    try:
        to_jsonable_python(value)
    except Exception:  # noqa: BLE001 - its code may raise anything
        return AS_RESOURCE
    return "use its JSON form, which pydantic_core.to_jsonable_python(value) returns"


def faults_of(error: ValidationError, whole: str) -> list[str]:
    """Return the faults of data from a model, one line for each. `whole`: the name for a fault of the data as a whole."""
    faults: list[str] = []
    for details in error.errors(include_url=False):
        place = ".".join(map(str, details["loc"])) or whole
        value = "" if details["type"] == "missing" else f" (got {shown(details['input'], _VALUE_LENGTH)})"
        faults.append(" ".join(f"{place}: {details['msg']}{value}".split()))  # message and value may have several lines
    return faults


def is_json(value: object, depth: int = DEEPEST) -> bool:
    """Return whether the value has only JSON types. A subclass is not such a type: JSON would lose its other data.

    NaN and the infinities are not JSON, and neither is a value that is nested too deeply, or contains itself.
    """
    if type(value) is dict:
        return depth > 0 and all(is_json(item, depth - 1) for item in cast("dict[object, object]", value).values())
    if type(value) is list:
        return depth > 0 and all(is_json(item, depth - 1) for item in cast("list[object]", value))
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def sendable_data(value: T) -> T:
    """Return JSON data with `whole_characters` in its texts and keys. If UTF-8 can encode them, return the value itself.

    Values of other types do not change, and neither does data that is nested too deeply: nothing can send it.
    """
    try:
        to_json(value)  # faster than any loop in Python
    except Exception:  # noqa: BLE001 - half a surrogate pair, or a value of another type
        return value if _is_sendable(value, DEEPEST) else cast("T", _sendable(value, DEEPEST))
    return value


def _is_sendable(value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return value.isascii() or sendable(value) is value
    if type(value) in _SCALARS or not depth:
        return True
    if is_object(value):  # a loop, because it takes half the time of a generator, and each delta is checked
        for key, item in value.items():
            if not (_is_sendable(item, depth - 1) and (type(key) is not str or key.isascii() or _is_sendable(key, 0))):
                return False
        return True
    return all(_is_sendable(item, depth - 1) for item in value) if is_array(value) else True


def _sendable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return whole_characters(value)
    if is_object(value) and depth:
        return {_sendable(key, 0): _sendable(item, depth - 1) for key, item in value.items()}
    return [_sendable(item, depth - 1) for item in value] if is_array(value) and depth else value


def fault_of_json(
    value: Any, place: str, is_allowed: Callable[[object], bool] = lambda _: False, depth: int = DEEPEST
) -> str | None:
    """Return the place and the fault of the first value that JSON in UTF-8 cannot hold; None without a fault.

    `place`: the name of the whole value. `is_allowed`: accepts values of other types, which the caller converts.
    """
    parts: Iterable[tuple[str, Any]]
    if not (is_object(value) or is_array(value)):
        return None if is_allowed(value) else _fault_of_one(value, place)
    if not depth:
        return f"{place[:_VALUE_LENGTH]} is nested too deeply, or contains itself"
    if is_object(value):
        if wrong := [key for key in value if not _is_key(key)]:
            return f"{place} has the key {shown(wrong[0], _VALUE_LENGTH)}, which is not JSON"
        parts = ((f"{place}[{key!r}]", item) for key, item in value.items())
    else:
        parts = ((f"{place}[{position}]", item) for position, item in enumerate(value))
    faults = (fault_of_json(item, name, is_allowed, depth - 1) for name, item in parts)
    return next(filter(None, faults), None)


def _fault_of_one(value: object, place: str) -> str | None:
    if isinstance(value, str):
        return None if sendable(value) is value else f"{place} has half a surrogate pair, which UTF-8 cannot encode"
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return None
    return f"{place} is {shown(value, _VALUE_LENGTH)}, which is not JSON"


def _is_key(key: object) -> bool:
    """Return whether the json module can write this key."""
    return sendable(key) is key if isinstance(key, str) else key is None or isinstance(key, int | float)


def finite(value: Any) -> Any:
    """Return JSON data with texts in place of NaN and the infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if is_object(value):
        return {key: finite(item) for key, item in value.items()}
    return [*map(finite, value)] if is_array(value) else value


# Texts in place of NaN and the infinities, as `finite` writes them.
_DECODER = json.JSONDecoder(parse_constant={"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}.__getitem__)


def _is_shallow(data: Any) -> bool:
    """Return whether JSON data is nested at most `DEEPEST` deep."""
    level: list[Any] = [data]
    for _ in range(DEEPEST + 1):
        inner: list[Iterable[Any]] = [
            item.values() if is_object(item) else item for item in level if type(item) in (dict, list)
        ]
        if not inner:
            return True
        level = [*chain.from_iterable(inner)]
    return False


def jsonable(value: Any) -> Any:
    """Return the value as JSON data that any encoder accepts.

    Bytes become base64. Infinities, NaN and objects of other classes become text. Half a surrogate pair becomes U+FFFD. A
    container that contains itself, or is nested too deeply, becomes one text. Other values do not change.
    """
    try:
        text = to_json(value, bytes_mode="base64", inf_nan_mode="constants").decode()
        data = _DECODER.decode(text)
        if text.count("{") + text.count("[") <= DEEPEST or _is_shallow(data):  # the brackets are faster to count
            return data  # takes less than half of the time of `_as_data`
    except Exception:  # noqa: BLE001, S110 - some value has no JSON form: `_as_data` replaces only this value
        pass
    try:
        return _as_data(value, DEEPEST)
    except Exception:  # noqa: BLE001 - nested too deeply, or a container of the user that cannot be read
        return _text_of(value)


def _as_data(value: Any, depth: int) -> Any:
    """Return the value as JSON data. Raises ValueError if it is nested deeper than `depth`, or contains itself."""
    if type(value) is str:
        return whole_characters(value)
    if type(value) is int and value.bit_length() > _MOST_BITS:
        return hex(value)  # some encoders refuse it
    if type(value) in _SCALARS:
        return finite(value)
    if not depth:
        raise ValueError("nested too deeply")
    if is_object(value):
        return {_key(key): _as_data(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_data(item, depth - 1) for item in cast("Iterable[Any]", value)]
    return _as_data(_without_classes(value), depth - 1)


def _key(key: Any) -> str:
    if type(key) is str:
        return whole_characters(key)
    data = _without_classes({key: None})  # a dict; or a text, if pydantic cannot convert the key
    return next(iter(data)) if is_object(data) else _text_of(key)


def _without_classes(value: Any) -> Any:
    try:
        return to_jsonable_python(value, bytes_mode="base64", fallback=_text_of)
    except Exception:  # noqa: BLE001 - the class of the user may raise anything while it is serialized
        return _text_of(value)


def _text_of(value: object) -> str:
    try:
        return whole_characters(str(value))
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deeply"
    except Exception:  # noqa: BLE001 - its `__str__` may raise anything
        return f"<{type(value).__name__}>"


def whole_characters(text: str) -> str:
    """Return the text with U+FFFD in place of each half surrogate pair, because UTF-8 cannot encode it."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

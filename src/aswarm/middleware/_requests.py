"""What a request asks, without what only says how it is sent: for middleware that compares requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from aswarm._json import is_array, is_object, shown

# How an answer comes, and what goes with it. Headers may hold a key.
_NOT_ASKED = frozenset({"extra_headers", "extra_query", "stream", "stream_options", "timeout"})
_SHOWN = 60


def asked_by(body: Mapping[str, Any]) -> dict[str, Any]:
    """What the body of a request asks, as JSON data. Raises ValueError for a value that JSON cannot hold."""
    asked: dict[str, Any] = to_jsonable_python({key: body[key] for key in sorted(body) if key not in _NOT_ASKED})
    return asked


def likeness(recorded: Any, current: Any) -> int:
    """How many values two requests have in common at the same place."""
    if is_object(recorded) and is_object(current):
        return sum(likeness(recorded[key], current[key]) for key in recorded if key in current)
    if is_array(recorded) and is_array(current):
        return sum(map(likeness, recorded, current))
    return int(recorded == current)


def difference(recorded: Any, current: Any, place: str = "the request") -> str:
    """The first place where two requests differ, and both values; empty if they are equal."""
    if is_object(recorded) and is_object(current):
        keys = [*recorded, *(key for key in current if key not in recorded)]
        found = (difference(recorded.get(key), current.get(key), f"{place}[{key!r}]") for key in keys)
        return next(filter(None, found), "")
    if is_array(recorded) and is_array(current):
        pairs = zip(recorded, current, strict=False)
        found = (difference(*pair, f"{place}[{at}]") for at, pair in enumerate(pairs))
        lengths = "" if len(recorded) == len(current) else _other_length(recorded, current, place)
        return next(filter(None, found), lengths)
    if recorded == current:
        return ""
    return f"{place} is {shown(current, _SHOWN)}, and {shown(recorded, _SHOWN)} in the recording"


def _other_length(recorded: list[Any], current: list[Any], place: str) -> str:
    return f"{place} has {len(current)} items, and {len(recorded)} in the recording"

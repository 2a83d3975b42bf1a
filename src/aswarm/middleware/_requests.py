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


def difference(recorded: Any, current: Any, place: str = "the request") -> str:
    """The first place where two requests differ, and both values; empty if they are equal."""
    if is_object(recorded) and is_object(current):
        keys = [*recorded, *(key for key in current if key not in recorded)]
        found = (difference(recorded.get(key), current.get(key), f"{place}[{key!r}]") for key in keys)
    elif is_array(recorded) and is_array(current) and len(recorded) == len(current):
        found = (difference(*pair, f"{place}[{at}]") for at, pair in enumerate(zip(recorded, current, strict=True)))
    elif is_array(recorded) and is_array(current):
        return f"{place} has {len(current)} items, and {len(recorded)} in the recording"
    else:
        same = recorded == current
        return "" if same else f"{place} is {shown(current, _SHOWN)}, and {shown(recorded, _SHOWN)} in the recording"
    return next(filter(None, found), "")

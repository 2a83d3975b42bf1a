"""The fold of keys that only the provider knows: what came in pieces becomes one value.

Strings are joined, dicts are merged, lists are extended (items with an `index` merged); the rest is replaced.
"""

from __future__ import annotations

from typing import Any

from aswarm._json import is_array, is_object

# Values that name a thing: a second one is a repetition, not a continuation.
_NAMES = frozenset({"id", "type", "index", "format", "name", "role"})


class Pieces(list[str]):
    """A string in pieces, joined once at the end: joining at every chunk would cost the square of the length."""


def fold(into: dict[str, Any], key: str, value: Any) -> None:
    """Strings are joined, dicts are merged, lists are extended (items with an `index` merged); the rest is replaced."""
    known = into.get(key)
    if isinstance(value, str) and key not in _NAMES:
        if isinstance(known, Pieces):
            known.append(value)
        else:
            into[key] = Pieces([value])
    elif is_object(value):
        target: dict[str, Any] = dict(known) if is_object(known) else {}
        into[key] = target
        for name, item in value.items():
            if item is not None:
                fold(target, name, item)
    elif is_array(value):
        # Never the provider's own list, which the deltas share.
        items: list[Any] = known if is_array(known) and not isinstance(known, Pieces) else []
        into[key] = items
        _fold_list(items, value)
    elif key not in _NAMES or known is None:
        into[key] = value


def _fold_list(into: list[Any], items: list[Any]) -> None:
    for item in items:
        if not is_object(item):
            into.append(item)
            continue
        place = item.get("index")
        target: dict[str, Any] | None = next((known for known in into if _is_at(place, known)), None)
        if target is None:
            target = {}
            into.append(target)
        for name, value in item.items():
            if value is not None:
                fold(target, name, value)


def _is_at(place: Any, item: Any) -> bool:
    return place is not None and is_object(item) and item.get("index") == place


def joined(value: Any) -> Any:
    if isinstance(value, Pieces):
        return "".join(value)
    if is_object(value):
        return {key: joined(item) for key, item in value.items()}
    return [joined(item) for item in value] if is_array(value) else value

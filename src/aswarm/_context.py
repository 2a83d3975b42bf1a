"""Context variables: how a run copies the caller's dict, and what has changed between two copies."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeGuard

from ._json import is_array, is_object


def copy_containers(value: Any) -> Any:
    """A copy of dicts, lists and sets, recursively. Everything else (locks, clients, models) is shared by reference.

    Another kind of mapping becomes a dict.
    """
    return _copy(dict(value) if is_object(value) and not _is_dict(value) else value, {})


def merge_changes(context: dict[Any, Any], before: dict[Any, Any], after: dict[Any, Any]) -> None:
    """Apply to `context` the changes between `before` and `after`, two copies of it. Other keys stay as they are."""
    changed, removed = changes(before, after)
    for key in removed:
        context.pop(key, None)
    context.update(changed)


def changes(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[Any]]:
    """The items of `after` that are new or different from `before`, and the keys that it no longer has."""
    seen: set[tuple[int, int]] = set()
    changed = {key: value for key, value in after.items() if key not in before or _differs(before[key], value, seen)}
    return changed, [key for key in before if key not in after]


def _differs(before: Any, after: Any, compared: set[tuple[int, int]]) -> bool:
    # Only containers are compared. Other objects are shared by reference, and may define `==` in their own way.
    pair = (id(before), id(after))
    if before is after or pair in compared:
        return False
    compared.add(pair)  # a container may contain itself
    if _is_dict(before) and _is_dict(after):
        return before.keys() != after.keys() or any(_differs(before[key], after[key], compared) for key in before)
    if is_array(before) and is_array(after):
        return len(before) != len(after) or any(_differs(*items, compared) for items in zip(before, after, strict=True))
    return not (isinstance(before, set) and isinstance(after, set) and before == after)


def _copy(value: Any, known: dict[int, Any]) -> Any:
    identity = id(value)
    if identity in known:  # a container may contain itself
        return known[identity]
    if not (_is_dict(value) or is_array(value) or isinstance(value, set)) or isinstance(value, tuple):
        return value
    made = known[identity] = _shallow(value)
    if _is_dict(made):
        made.update({key: _copy(item, known) for key, item in made.items()})
    elif is_array(made):
        made[:] = [_copy(item, known) for item in made]
    return made


def _shallow(value: Any) -> Any:
    return copy.copy(value)


def _is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)

"""Context variables: copies of the caller's dict, and the changes between two copies.

Copies and comparisons use loops, not recursion, because the context variables may be nested to any depth. The module reads
containers with the methods of dict, list, tuple and set themselves. A method of a user's subclass could raise, which would end
the run or replace its cancellation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeGuard, cast

from .errors import ConfigurationError
from .json import DEEPEST, as_json_or_resource, is_array, is_object, shown

_SHOWN = 80
# The built-in classes under names with exact type hints, for calls such as `_DICT.items(value)`.
_DICT: type[dict[Any, Any]] = dict
_LIST: type[list[Any]] = list
_SET: type[set[Any]] = set
_TUPLE: type[tuple[Any, ...]] = tuple
plain_copy = _DICT.copy  # a plain dict with the items of a dict of any class


def check_context(context: object) -> None:
    """Raise ConfigurationError if the argument `context_variables` is neither a dict nor None."""
    if context is None or is_object(context):
        return
    kind = type(context).__name__
    is_plain = type(context).__module__ == "builtins"
    remedy = (
        ""
        if is_plain
        else f"; pass a dict, and a function with the parameter `context_variables: {kind}` gets a {kind}"
    )
    raise ConfigurationError(f"context_variables must be a dict, not {kind}{remedy}")


def copy_containers(value: Any) -> Any:
    """Return a copy of dicts, lists and sets, at any depth. The copy shares other objects (locks, clients, models).

    A mapping of another class becomes a dict. If a subclass of a container cannot be copied, its copy is a plain container.
    """
    original: object = value
    # A fast path: most runs have no context variables, and each snapshot of a run copies them.
    if type(original) is dict and not original:
        return {}
    copies: dict[int, Any] = {}  # by id() of the original, because a container may contain itself
    # (original, copy); the list keeps the originals alive, so Python does not reuse an id().
    pairs: list[tuple[Any, Any]] = []

    def copied(item: Any) -> Any:
        if not (_is_dict(item) or _is_list(item) or _is_set(item)):
            return item
        if id(item) not in copies:
            container = copies[id(item)] = _shallow(item)
            pairs.append((item, container))
        return copies[id(item)]

    top = copied(dict(value) if is_object(value) and not _is_dict(value) else value)
    for _, container in pairs:  # the list grows during the loop
        if _is_dict(container):
            for key, item in _DICT.items(container):
                if (item_copy := copied(item)) is not item:
                    _DICT.__setitem__(container, key, item_copy)
        elif _is_list(container):
            _LIST.__setitem__(container, slice(None), list(map(copied, _LIST.__iter__(container))))
    return top


def context_faults(context: Mapping[Any, Any]) -> Iterator[tuple[Any, str]]:
    """Yield the name of each context variable that is not JSON, and its fault."""
    for key, value in context.items():
        fault = _fault(value, str(key)) if isinstance(key, str) else f"the name {shown(key, _SHOWN)} is not a str"
        if fault:
            yield key, fault


def _fault(value: object, place: str, depth: int = DEEPEST) -> str | None:
    """Return the fault of a value that JSON would change, or None. For example, JSON would change a tuple to a list."""
    parts: Iterable[tuple[object, object]]
    if type(value) is dict:
        parts = cast("dict[object, object]", value).items()
        if wrong := [key for key, _ in parts if not isinstance(key, str)]:
            return f"{place} has the key {shown(wrong[0], _SHOWN)}, which is not a str"
    elif type(value) is list:
        parts = enumerate(cast("list[object]", value))
    else:
        is_plain = value is None or type(value) in (str, int, float, bool)
        return None if is_plain else f"{place} is {shown(value, _SHOWN)}; {as_json_or_resource(value)}"
    if not depth:
        return f"{place.partition('[')[0]} is nested too deeply, or contains itself"
    faults = (_fault(item, f"{place}[{key!r}]", depth - 1) for key, item in parts)
    return next(filter(None, faults), None)


def context_error(fault: str, keeper: str = "a conversation") -> str:
    """Return the error text for a context variable that is not JSON."""
    return (
        f"{keeper} keeps context variables as JSON (dict with str keys, list, str, int, float, bool, None), but {fault}"
    )


def merge_changes(context: dict[Any, Any], before: dict[Any, Any], after: dict[Any, Any]) -> None:
    """Apply to `context` the changes between `before` and `after`, two copies of `context`. Other keys do not change."""
    changed, removed = changes(before, after)
    for key in removed:
        context.pop(key, None)
    context.update(changed)


def changes(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> tuple[dict[Any, Any], list[Any]]:
    """Return the items of `after` that are new or different from `before`, and the removed keys."""
    if not (before or after):  # most runs have no context variables
        return {}, []
    equal: set[tuple[int, int]] = set()
    changed = {key: value for key, value in after.items() if key not in before or _differs(before[key], value, equal)}
    return changed, [key for key in before if key not in after]


def _differs(before: Any, after: Any, equal: set[tuple[int, int]]) -> bool:
    # Compare only containers by content. Other objects are compared by identity, because their `==` may be any code.
    # `equal`: the pairs that other comparisons have found equal.
    compared: set[tuple[int, int]] = set()
    pairs: list[tuple[Any, Any]] = [(before, after)]
    for left, right in pairs:  # the list grows during the loop
        if left is right or (id(left), id(right)) in compared or (id(left), id(right)) in equal:
            continue
        compared.add((id(left), id(right)))  # a container may contain itself
        if _is_dict(left) and _is_dict(right):
            if _DICT.keys(left) != _DICT.keys(right):
                return True
            pairs.extend((item, _DICT.__getitem__(right, key)) for key, item in _DICT.items(left))
        elif is_array(left) and is_array(right):
            if len(left_items := _items(left)) != len(right_items := _items(right)):
                return True
            pairs.extend(zip(left_items, right_items, strict=True))
        elif not (_is_set(left) and _is_set(right) and _SET.__eq__(left, right)):
            return True
    equal |= compared
    return False


def _items(array: Any) -> list[Any]:
    return list(_LIST.__iter__(array) if _is_list(array) else _TUPLE.__iter__(array))


def _shallow(value: Any) -> Any:
    try:
        duplicate = copy.copy(value)
    except Exception:  # noqa: BLE001 - a class of the user may refuse
        duplicate = value
    if duplicate is value:
        base: Any = next(kind for kind in (dict, list, set) if isinstance(value, kind))
        duplicate = base.copy(value)
    return duplicate


def _is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_set(value: object) -> TypeGuard[set[Any]]:
    return isinstance(value, set)

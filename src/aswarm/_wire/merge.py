"""Merge rules for a provider's own keys, whose values arrive in pieces.

Strings are joined, dicts are merged, and lists are extended. Any other value replaces the old value. Two items of a list are
merged if they have the same `index`, or if they are pieces of one thinking block: LiteLLM streams such pieces in
`thinking_blocks`, and Anthropic requires the whole block in the next request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aswarm._values.json import is_array, is_object

# The values of these keys are never sent in pieces: a second value only repeats the first value.
_NAMES = frozenset({"id", "type", "index", "format", "name", "role"})


class Pieces(list[str]):
    """A string in pieces. They are joined once at the end, because joining at every chunk would take quadratic time."""


class Items(list[Any]):
    """A merged list with a dict of its objects by `index`, because a search at every chunk would take quadratic time."""

    def __init__(self) -> None:
        self._by_index: dict[Any, dict[str, Any]] = {}

    def with_index(self, index: Any) -> dict[str, Any] | None:
        """Return the first object with this index, or None."""
        return None if index is None else self._by_index.get(_hashable(index))

    def note_index(self, item: dict[str, Any]) -> None:
        """Add an object to the dict, under its current index."""
        if (index := item.get("index")) is not None:
            self._by_index.setdefault(_hashable(index), item)


def _hashable(index: Any) -> Any:
    return index if isinstance(index, int | float | str) else repr(index)


def merge_key(into: dict[str, Any], key: str, value: Any) -> None:
    """Merge the next value of a key, by the rules of this module. `join_pieces` joins the strings at the end."""
    old = into.get(key)
    if isinstance(value, str) and key not in _NAMES:
        if isinstance(old, Pieces):
            old.append(value)
        else:
            into[key] = Pieces([value])
    elif is_object(value):
        target: Any = old if is_object(old) else {}
        into[key] = target
        merge_object(target, value)
    elif is_array(value):
        items = old if isinstance(old, Items) else Items()
        into[key] = items
        _merge_list(items, value)
    elif key not in _NAMES or old is None:
        into[key] = value


def _list_of(into: dict[str, Any], key: str) -> list[Any]:
    """Return the list of a key, or a new list. The result is never a list of the provider: the deltas contain those lists."""
    old = into.get(key)
    items: list[Any] = old if is_array(old) and not isinstance(old, Pieces) else []
    into[key] = items
    return items


def merge_object(into: dict[str, Any], wire: Mapping[str, Any]) -> None:
    """Merge the keys of an object. Ignore keys with None."""
    for key, value in wire.items():
        if value is not None:
            merge_key(into, key, value)


def _merge_list(into: Items, items: list[Any]) -> None:
    for item in items:
        if not is_object(item):
            into.append(item)
            continue
        target: Any = into.with_index(item.get("index"))
        if target is None and into and _continues_thinking(into[-1], item):
            target = into[-1]
        if target is None:
            target = {}
            into.append(target)
        merge_object(target, item)
        into.note_index(target)


def _continues_thinking(last: Any, item: Mapping[str, Any]) -> bool:
    is_thinking = is_object(last) and last.get("type") == item.get("type") == "thinking"
    return is_thinking and "signature" not in last  # the signature is the last piece of a block


def merge_parts(into: list[Any], parts: list[Any]) -> None:
    """Merge parts of a content. A piece of text or thinking is appended to the last part if that part has the same type."""
    for part in parts:
        kind = part.get("type") if is_object(part) else None
        if kind not in ("text", "thinking") or not isinstance(part.get(kind), str | list):
            into.append(part)  # a whole part, such as an image
            continue
        last: Any = into[-1] if into else None
        form = Pieces if isinstance(part[kind], str) else list
        continues = is_object(last) and last.get("type") == kind and type(last.get(kind)) is form
        target: dict[str, Any] = into[-1] if continues else {}
        if not continues:
            into.append(target)
        for key, value in part.items():
            if is_array(value):
                merge_parts(_list_of(target, key), value)
            else:
                merge_key(target, key, value)


def check_parts(parts: Any) -> None:
    """Raise TypeError for parts that no API accepts: no list, an item that is no object, a text that is a list or object."""
    if not (is_array(parts) and all(map(_is_part, parts))):
        raise TypeError("the content has a malformed part")


def _is_part(part: Any) -> bool:
    return is_object(part) and not is_object(text := part.get("text")) and not is_array(text)


def is_text(part: Any) -> bool:
    """Return whether a part of a content is a text without other keys."""
    return is_object(part) and part.get("type") == "text" and set(part) == {"type", "text"}


def join_pieces(value: Any) -> Any:
    """Return a copy of the value with joined strings."""
    if isinstance(value, Pieces):
        return "".join(value)
    if is_object(value):
        return {key: join_pieces(item) for key, item in value.items()}
    return [join_pieces(item) for item in value] if is_array(value) else value

"""Merge rules for a provider's own keys, which arrive in several chunks.

Strings are joined, dicts are merged, and lists are extended. Any other value replaces the old value. But only what the model wrote
(reasoning, a refusal, audio) is sure to arrive in pieces. For another key, a second value that is equal to the first is a repeat,
and so is a list that starts with the whole list so far. The strings of an answer key, such as Groq's `channel`, are never pieces.

Two items of a list are pieces of one item if they have the same `index`, and no different `type`, `id`, `format` or `data`:
gateways give a summary and the encrypted reasoning beside it the same number. A thinking block without an index ends with its signature:
LiteLLM streams such blocks in pieces in `thinking_blocks`, and Anthropic requires the whole block in the next request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aswarm._values.json import is_array, is_object
from aswarm._values.wire_messages import ANSWER_KEYS, is_of_model

# The values of these keys are never sent in pieces: a second value only repeats the first value.
_NAMES = frozenset({"id", "type", "index", "format", "name", "role"})
# The fields of the API that arrive in pieces. The keys of `is_of_model` do too.
_IN_PIECES = frozenset({"refusal", "function_call", "audio"})
_PIECES, _MAYBE_REPEATED, _LABELS = range(3)  # what the strings of a key are
# If two items have different values of one of these keys, they are two items.
_IDENTITY = ("type", "id", "format")


class Pieces(list[str]):
    """A string in pieces. They are joined once at the end, because joining at every chunk would take quadratic time."""


class Items(list[Any]):
    """A merged list with the last object of each `index`, because a search at every chunk would take quadratic time."""

    def __init__(self) -> None:
        self._by_index: dict[Any, dict[str, Any]] = {}

    def continued_by(self, item: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the object that this item continues, or None."""
        if (index := item.get("index")) is not None:
            earlier = self._by_index.get(_place(index, item)) or self._by_index.get(_hashable(index))
            return earlier if earlier is not None and _may_continue(earlier, item) else None
        last: Mapping[str, Any] = self[-1] if self and is_object(self[-1]) else {}
        is_thinking = last.get("type") == item.get("type") == "thinking"
        return self[-1] if is_thinking and "signature" not in last else None  # a signature ends a block

    def note(self, item: dict[str, Any]) -> None:
        """Remember an object under its index."""
        if (index := item.get("index")) is not None:
            self._by_index[_hashable(index)] = self._by_index[_place(index, item)] = item


def _place(index: Any, item: Mapping[str, Any]) -> tuple[Any, ...]:
    return (_hashable(index), *(_hashable(item.get(key)) for key in _IDENTITY))


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int | float | str) else repr(value)


def _may_continue(last: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Return whether an item with the same index may be the next piece of this object."""
    for key in _IDENTITY:
        old, new = last.get(key), item.get(key)
        if old is not None and new is not None and old != new:
            return False
    data = last.get("data")
    if isinstance(data, Pieces) and item.get("data") not in (None, data[0]) and item.get("id") is None:
        return False  # encrypted reasoning is never sent in pieces
    # A signature ends a block of reasoning. More text belongs to the next block.
    return not (item.get("text") and _has_text(last.get("signature")) and _has_text(last.get("text")))


def _has_text(value: Any) -> bool:
    return isinstance(value, Pieces) and any(value)


def merge_own_key(into: dict[str, Any], key: str, value: Any) -> None:
    is_text = key in _IN_PIECES or is_of_model(key)
    merge_key(into, key, value, _PIECES if is_text else _LABELS if key in ANSWER_KEYS else _MAYBE_REPEATED)


def merge_key(into: dict[str, Any], key: str, value: Any, strings: int = _PIECES) -> None:
    """Merge the next value of a key, by the rules of this module. `join_pieces` joins the strings at the end."""
    old = into.get(key)
    if isinstance(value, str) and strings != _LABELS and key not in _NAMES:
        if not isinstance(old, Pieces):
            into[key] = Pieces([value])
        elif strings == _PIECES or old != [value]:
            old.append(value)
    elif is_object(value):
        target: Any = old if is_object(old) else {}
        into[key] = target
        merge_object(target, value, strings)
    elif is_array(value):
        items = old if isinstance(old, Items) else Items()
        if strings != _PIECES and 0 < len(items) <= len(value) and join_pieces(items) == [*value[: len(items)]]:
            items = Items()  # the server repeats the whole list
        into[key] = items
        _merge_list(items, value, strings)
    elif strings == _LABELS or key not in _NAMES or old is None:
        into[key] = value


def merge_object(into: dict[str, Any], wire: Mapping[str, Any], strings: int = _PIECES) -> None:
    """Merge the keys of an object. Ignore keys with None."""
    for key, value in wire.items():
        if value is not None:
            merge_key(into, key, value, strings)


def _merge_list(into: Items, items: list[Any], strings: int) -> None:
    for item in items:
        if not is_object(item):
            into.append(item)
            continue
        target = into.continued_by(item)
        if target is None:
            target = {}
            into.append(target)
        repeats_data = target.get("data") == [item.get("data")]
        merge_object(target, {key: item[key] for key in item if key != "data"} if repeats_data else item, strings)
        into.note(target)


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
                # Never merge into a list of the provider, because the deltas contain it.
                old = target.get(key)
                target[key] = inner = old if is_array(old) and not isinstance(old, Pieces) else []
                merge_parts(inner, value)
            else:
                merge_key(target, key, value)


def check_parts(parts: Any) -> None:
    """Raise TypeError for parts that no API accepts: no list, an item that is no object, a text that is a list or object."""
    if not is_array(parts) or not all(
        is_object(part) and not is_object(text := part.get("text")) and not is_array(text) for part in parts
    ):
        raise TypeError("the content has a malformed part")


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

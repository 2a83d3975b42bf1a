"""Merging keys that only the provider knows: pieces become one value.

Strings are joined, dicts are merged, lists are extended; other values are replaced. Items of a list are merged if they have
the same `index`, or are pieces of one thinking block (LiteLLM streams `thinking_blocks` so, and Anthropic wants the block back).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aswarm._json import is_array, is_object

# Keys whose value names something: a second value is a repetition and not a continuation.
_NAMES = frozenset({"id", "type", "index", "format", "name", "role"})


class Pieces(list[str]):
    """A string in pieces. They are joined once at the end; joining at every chunk would cost the square of the length."""


def merge_key(into: dict[str, Any], key: str, value: Any) -> None:
    """Merge one more value of a key, by the rules of this module. `join_pieces` gives the strings their final form."""
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
                merge_key(target, name, item)
    elif is_array(value):
        # A list of our own: the deltas share the provider's.
        items: list[Any] = known if is_array(known) and not isinstance(known, Pieces) else []
        into[key] = items
        _merge_list(items, value)
    elif key not in _NAMES or known is None:
        into[key] = value


def _merge_list(into: list[Any], items: list[Any]) -> None:
    for item in items:
        if not is_object(item):
            into.append(item)
            continue
        index = item.get("index")
        target: dict[str, Any] | None = next((known for known in into if _has_index(known, index)), None)
        if target is None and into and _continues_thinking(into[-1], item):
            target = into[-1]
        if target is None:
            target = {}
            into.append(target)
        for name, value in item.items():
            if value is not None:
                merge_key(target, name, value)


def _has_index(item: Any, index: Any) -> bool:
    return index is not None and is_object(item) and item.get("index") == index


def _continues_thinking(last: Any, item: Mapping[str, Any]) -> bool:
    is_thinking = is_object(last) and last.get("type") == item.get("type") == "thinking"
    return is_thinking and "signature" not in last  # the signature is the last piece of a block


def merge_parts(into: list[Any], parts: list[Any]) -> None:
    """Merge parts of a message's content: a piece of text, or of thinking, continues a part of its kind before it."""
    for part in parts:
        last = into[-1] if into else None
        if not is_object(part) or not (key := _continued_by(part)):
            into.append(part)
        elif is_object(last) and last.get("type") == part["type"] and key in last:
            _continue(last, part)
        else:
            made: dict[str, Any] = {}
            into.append(made)
            _continue(made, part)


def _continue(target: Any, part: Any) -> None:
    for key, value in part.items():
        if is_array(value):
            merge_parts(target.setdefault(key, []), value)
        else:
            merge_key(target, key, value)


def _continued_by(part: Any) -> str | None:
    """The key that holds the text of a part; None for a part that is whole, such as an image."""
    kind = part.get("type")
    return kind if kind in ("text", "thinking") and isinstance(part.get(kind), str | list) else None


def is_text(part: Any) -> bool:
    """Whether a part of a content is a text, and says nothing else."""
    return is_object(part) and part.get("type") == "text" and set(part) == {"type", "text"}


def join_pieces(value: Any) -> Any:
    """A copy of the value in which every string is joined."""
    if isinstance(value, Pieces):
        return "".join(value)
    if is_object(value):
        return {key: join_pieces(item) for key, item in value.items()}
    return [join_pieces(item) for item in value] if is_array(value) else value

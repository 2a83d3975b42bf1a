"""Characters that a server has cut between the two surrogates of UTF-16.

Servers in JavaScript may split an emoji into two pieces, each with half a surrogate pair. JSON allows an escaped half (RFC
8259, section 8.2), but UTF-8 cannot encode it. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from aswarm._values.json import is_array, is_object, whole_characters

_Place: TypeAlias = tuple[object, ...]
_FIRST_HALVES = ("\ud800", "\udbff")


class CutCharacters:
    """Joins the halves of characters in consecutive deltas.

    A half without its other half becomes U+FFFD. At the end of a text it is left out.
    """

    __slots__ = ("halves",)

    def __init__(self) -> None:
        self.halves: dict[_Place, str] = {}  # the first half at the end of the last piece, by the place in the delta

    def joined(self, delta: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the next delta with whole characters."""
        return cast("Mapping[str, Any]", self._joined(delta, ()))

    def _joined(self, value: Any, place: _Place) -> Any:
        if isinstance(value, str):
            text = self.halves.pop(place, "") + value
            if text and _FIRST_HALVES[0] <= text[-1] <= _FIRST_HALVES[1]:
                self.halves[place] = text[-1]
                text = text[:-1]
            return whole_characters(text)
        if is_object(value):
            return {key: self._joined(item, (*place, key)) for key, item in value.items()}
        if is_array(value):
            return [self._joined(item, (*place, _number(item, at))) for at, item in enumerate(value)]
        return value


def _number(item: Any, position: int) -> object:
    return item.get("index", position) if is_object(item) else position

"""Characters that a server has cut, or escaped, between the two surrogates of UTF-16.

Servers in JavaScript may split an emoji into two pieces, each with half a surrogate pair. JSON allows an escaped half (RFC
8259, section 8.2), but UTF-8 cannot encode it. Sans-IO.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from aswarm._values.json import is_array, is_object, sendable_data

_Place: TypeAlias = tuple[object, ...]
# One escape of JSON. The group is an escaped half without its other half.
_ESCAPE = r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
_ESCAPE_OF_TEXT, _ESCAPE_OF_BYTES = re.compile(_ESCAPE, re.DOTALL), re.compile(_ESCAPE.encode(), re.DOTALL)
_FIRST_HALVES = ("\ud800", "\udbff")


def whole_escapes(text: str) -> str:
    r"""Return a JSON text with `\ufffd` in place of each escaped half of a surrogate pair, which JSON parsers refuse."""
    if "\\u" not in text:
        return text
    return _ESCAPE_OF_TEXT.sub(lambda found: r"\ufffd" if found[1] else found[0], text)


def whole_escapes_of(data: bytes) -> bytes:
    """Return `whole_escapes` of a JSON text in bytes."""
    return _ESCAPE_OF_BYTES.sub(lambda found: rb"\ufffd" if found[1] else found[0], data)


class CutCharacters:
    """Joins the halves of characters in consecutive deltas. A half without its other half becomes U+FFFD, or is left out at
    the end of a text.
    """

    __slots__ = ("_halves",)

    def __init__(self) -> None:
        self._halves: dict[_Place, str] = {}  # the first half at the end of the last piece, by the place in the delta

    def joined(self, delta: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the next delta with whole characters."""
        if not self._halves and sendable_data(delta) is delta:
            return delta
        return cast("Mapping[str, Any]", self._joined(delta, ()))

    def _joined(self, value: Any, place: _Place) -> Any:
        if isinstance(value, str):
            text = self._halves.pop(place, "") + value
            if text and _FIRST_HALVES[0] <= text[-1] <= _FIRST_HALVES[1]:
                self._halves[place] = text[-1]
                text = text[:-1]
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        if is_object(value):
            return {key: self._joined(item, (*place, key)) for key, item in value.items()}
        if is_array(value):
            return [self._joined(item, (*place, _number(item, at))) for at, item in enumerate(value)]
        return value


def _number(item: Any, position: int) -> object:
    return item.get("index", position) if is_object(item) else position

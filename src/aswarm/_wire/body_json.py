"""JSON of a request's body. A message that the previous request of the run has sent is not encoded again.

A part of the previous body is copied for these messages, so the run keeps only the body that the client holds too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from pydantic_core import to_json

from .responses_request import KnownHistory, SentItems


def body_json(body: Mapping[str, Any], known: KnownHistory | None) -> bytes:
    """Return the body of either API as JSON. `known`: the known history of the run, which keeps the result.

    Raises ValueError for a value without a JSON form, and if a text has the name of a number that JSON does not have.
    """
    if known is None:
        return _encoded(body)
    key = "messages" if "messages" in body else "input"
    items: Sequence[Any] = body[key]
    # The instructions are a new object in each request.
    count = int(bool(items) and items[0].get("role") == "system")
    instructions, items = items[:count], items[count:]
    start = _encoded({name: value for name, value in body.items() if name != key} | {key: instructions})[:-2]
    earlier = known.sent
    if earlier is None or len(earlier.items) > len(items) or not all(map(is_, earlier.items, items)):
        history = _encoded(items)[1:-1]
    else:
        history = earlier.content[earlier.start : earlier.end]
        if new := _encoded(items[len(earlier.items) :])[1:-1]:
            history = history + b"," + new if history else new
    content = b"".join((start, b"," if instructions and history else b"", history, b"]}"))
    end = len(content) - 2
    known.sent = SentItems(items, content, end - len(history), end)
    return content


def _encoded(value: Any) -> bytes:
    encoded = to_json(value)
    if b"NaN" in encoded or b"Infinity" in encoded:  # Python's texts for numbers that JSON does not have
        raise ValueError("not a JSON number")
    return encoded

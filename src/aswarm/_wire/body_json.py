"""JSON of a request's body. A message that the previous request of the run has sent is not encoded again.

A part of the previous body is copied for these messages, so the run keeps only the body that the client holds too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from pydantic_core import to_json

from .responses_request import KnownHistory, SentItems

# Python's texts for numbers that JSON does not have.
_NO_JSON = (b"NaN", b"Infinity")


def body_json(body: Mapping[str, Any], known: KnownHistory | None) -> bytes:
    """Return the body of either API as JSON. `known`: the known history of the run, which keeps the result.

    Raises ValueError for a value without a JSON form, and if a text has the name of a number that JSON does not have.
    """
    key = "messages" if "messages" in body else "input"
    items: Sequence[Any] = body[key]
    start = _encoded({name: value for name, value in body.items() if name != key})[:-1] + b',"%b":[' % key.encode()
    # The instructions are a new object in each request.
    has_instructions = bool(items) and items[0].get("role") == "system"
    first, items = (_encoded(items[0]) + b",", items[1:]) if has_instructions else (b"", items)
    earlier = None if known is None else known.sent
    if earlier is None or len(earlier.items) > len(items) or not all(map(is_, earlier.items, items)):
        history = _encoded(items)[1:-1]
    else:
        new = _encoded(items[len(earlier.items) :])[1:-1]
        history = b",".join(filter(None, (earlier.json, new)))
    content = b"".join((start, first if history else first[:-1], history, b"]}"))
    if known is not None:
        known.sent = SentItems(items, content, len(content) - 2 - len(history), len(content) - 2)
    return content


def _encoded(value: Any) -> bytes:
    encoded = to_json(value)
    if any(map(encoded.__contains__, _NO_JSON)):
        raise ValueError("not a JSON number")
    return encoded

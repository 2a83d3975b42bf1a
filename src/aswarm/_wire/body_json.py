"""JSON of a request's body. The messages of the previous request of the run are not encoded again.

Their JSON is copied from the previous body. The run stores only its last body, which the client holds in memory anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from pydantic_core import to_json

from .responses_request import KnownHistory, SentItems


def body_json(body: Mapping[str, Any], known: KnownHistory | None) -> bytes:
    """Return the body for one of the two APIs as JSON. `known`: the known history of the run, which stores the result.

    Raises ValueError for a value without a JSON form, such as NaN, but also for a text that contains "NaN" or "Infinity".
    """
    if known is None:
        return _encoded(body)
    key = "messages" if "messages" in body else "input"
    items: Sequence[Any] = body[key]
    # The instructions, a system message, are a new object in each request, so their JSON is never reused.
    count = int(bool(items) and items[0].get("role") == "system")
    instructions, items = items[:count], items[count:]
    start = _encoded({name: value for name, value in body.items() if name != key} | {key: instructions})[:-2]
    earlier = known.sent
    if earlier is None or len(earlier.items) > len(items) or not all(map(is_, earlier.items, items)):
        history: tuple[bytes | memoryview, ...] = (_encoded(items)[1:-1],)
    else:
        sent = memoryview(earlier.content)[earlier.start : earlier.end]  # copied only once, by the join
        new = _encoded(items[len(earlier.items) :])[1:-1]
        history = (sent, b",", new) if sent and new else (sent, new)
    size = sum(map(len, history))
    content = b"".join((start, b"," if instructions and size else b"", *history, b"]}"))
    end = len(content) - 2
    known.sent = SentItems(items, content, end - size, end)
    return content


def _encoded(value: Any) -> bytes:
    encoded = to_json(value)
    if b"NaN" in encoded or b"Infinity" in encoded:  # pydantic-core writes these numbers, which are not JSON
        raise ValueError("not a JSON number")
    return encoded

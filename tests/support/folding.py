"""Chunks as a server sends them, and what the fold makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from aswarm._wire.accumulator import Accumulator, Completion

Json = dict[str, Any]


def chunk(delta: object = None, finish: str | None = None, **more: Any) -> Json:
    """One chunk with one choice."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def whole(message: Json, finish: str | None = "stop", **more: Any) -> Json:
    """A whole completion."""
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}


def wire_call(name: str | None = None, arguments: Any = None, **more: Any) -> Json:
    """A tool-call fragment; what is None is left out."""
    given = {"name": name, "arguments": arguments}
    return {**more, "function": {key: value for key, value in given.items() if value is not None}}


def fold(chunks: Iterable[Mapping[str, Any]]) -> Completion:
    """The completion of these chunks."""
    accumulator = Accumulator()
    for item in chunks:
        accumulator.feed(item)
    return accumulator.finish()


def message_of(*deltas: object) -> Json:
    """The message of these deltas, followed by a finish."""
    return fold([*(chunk(delta) for delta in deltas), chunk({}, "stop")]).message


def deltas_of(*deltas: object) -> list[Json | None]:
    """What is shown of these deltas."""
    accumulator = Accumulator()
    return [accumulator.feed(chunk(delta)) for delta in deltas]


json_values = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "id", "type"]), inner, max_size=3)
    ),
    max_leaves=6,
)

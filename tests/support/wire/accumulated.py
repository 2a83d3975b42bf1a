"""The results of the accumulator: the completion, its message, and the deltas that are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import strategies as st

from aswarm.extensions import Accumulator, Completion
from tests.support.wire.wire_cases import chunk

Json = dict[str, Any]


def whole(message: Json, finish: str | None = "stop", **more: Any) -> Json:
    """Return a whole completion."""
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}


def accumulate(chunks: Iterable[Mapping[str, Any]]) -> Completion:
    """Return the completion of these chunks."""
    accumulator = Accumulator()
    for item in chunks:
        accumulator.feed(item)
    return accumulator.finish()


def message_of(*deltas: object) -> Json:
    """Return the message of these deltas, followed by a finish."""
    return accumulate([*(chunk(delta) for delta in deltas), chunk({}, "stop")]).message


def deltas_of(*deltas: object) -> list[Json | None]:
    """Return the deltas that a caller gets."""
    accumulator = Accumulator()
    return [accumulator.feed(chunk(delta)) for delta in deltas]


json_values = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "id", "type"]), inner, max_size=3)
    ),
    max_leaves=6,
)

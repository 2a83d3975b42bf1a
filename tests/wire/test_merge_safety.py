"""The accumulator: no shape escapes as an `AttributeError`, nothing shown is changed later, no size costs a square."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import CompletionError
from aswarm._values.messages import normalize
from aswarm._wire.accumulator import Accumulator
from tests.support.wire.accumulated import Json, accumulate, deltas_of, json_values, whole
from tests.support.wire.wire_cases import chunk, fragment

pytestmark = pytest.mark.slow

_keys = [
    "choices",
    "delta",
    "message",
    "content",
    "tool_calls",
    "function",
    "custom",
    "arguments",
    "name",
    "id",
    "index",
]
_garbage = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "stop", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from([*_keys, "finish_reason", "usage", "type", "role", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)
_garbled_calls = st.lists(
    st.dictionaries(st.sampled_from(["index", "id", "function", "x"]), _garbage, max_size=3) | _garbage, max_size=2
)
_garbled_deltas = st.fixed_dictionaries({}, optional={"content": _garbage, "tool_calls": _garbled_calls, "x": _garbage})
_garbled_choices = st.fixed_dictionaries({}, optional={"delta": _garbled_deltas | _garbage, "message": _garbled_deltas})
_garbled_chunks = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(_garbled_choices | _garbage, max_size=2) | _garbage, "usage": _garbage}
)


@given(st.lists(_garbled_chunks, max_size=4))
def test_no_shape_escapes_as_an_internal_error(chunks: list[Json]) -> None:
    """Whatever JSON a server sends, accumulating it succeeds or raises a CompletionError, and nothing else."""
    accumulator = Accumulator()
    try:
        for item in chunks:
            accumulator.feed(item)
        accumulator.finish()
    except CompletionError:
        pass


_odd_texts = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "a"])
_odd_texts |= st.lists(_odd_texts, max_size=2) | st.dictionaries(st.just("text"), _odd_texts, max_size=1)
_odd_parts = _odd_texts | st.fixed_dictionaries(
    {},
    optional={"type": st.sampled_from(["text", "thinking", "image_url"]), "text": _odd_texts, "thinking": _odd_texts},
)


@given(st.lists(st.sampled_from(["a", None]) | _odd_texts | st.lists(_odd_parts, max_size=3), max_size=4))
def test_the_next_run_takes_what_was_recorded(contents: list[Any]) -> None:
    """Whatever content a server sends is an error at once, or a message of a valid history, whose chunks stay as they were."""
    sent = copy.deepcopy(contents)
    with suppress(CompletionError):
        message = accumulate([*(chunk({"content": content}) for content in sent), chunk({}, "stop")]).message
        normalize([message])
        assert isinstance(message["content"], str | list)
    assert sent == contents


@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"content": json_values, "x": json_values, "y": json_values}), max_size=5
    )
)
def test_deltas_are_never_changed_later(deltas: list[Json]) -> None:
    """A delta that was handed out stays as it was, whatever comes after it and whatever the accumulator does."""
    accumulator = Accumulator()
    handed: list[tuple[Json | None, Json | None]] = []
    try:
        for delta in deltas:
            shown = accumulator.feed(chunk(delta))
            handed.append((shown, copy.deepcopy(shown)))
        accumulator.feed(chunk({}, "stop"))
        accumulator.finish()
    except (CompletionError, AttributeError, TypeError):
        pass  # what raises is the business of the test above
    assert [shown for shown, _ in handed] == [kept for _, kept in handed]


def test_a_list_after_text_is_not_the_servers_own_list() -> None:
    """A key that is text first and lists later must not grow the list of a delta that was handed out."""
    _, second, _ = shown = deltas_of({"x": "text"}, {"x": [1]}, {"x": [2]})
    assert len(shown) == 3
    assert second is not None
    assert second["x"] == [1]


@given(json_values)
def test_a_key_of_a_whole_message_stays_as_it_is(value: object) -> None:
    """What only the provider knows is kept unchanged when it comes whole."""
    message = accumulate([whole({"role": "assistant", "content": "a", "vendor": value})]).message
    assert message.get("vendor", []) == value


def test_a_long_answer_costs_no_square() -> None:
    """Text, arguments and reasoning are joined late: thirty thousand pieces of each are nothing."""
    accumulator = Accumulator()
    for _ in range(30_000):
        accumulator.feed(
            chunk({"content": "x", "reasoning_content": "y", "tool_calls": [fragment(None, "z", index=0)]})
        )
    accumulator.feed(chunk({}, "length"))
    message = accumulator.finish().message
    assert len(message["content"]) == len(message["reasoning_content"]) == 30_000

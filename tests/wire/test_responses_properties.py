"""The events of the Responses API: any cut of an answer gives the same message, and no shape ends in another error."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import CompletionError, ConfigurationError
from aswarm._values.wire_messages import OUTPUT_ITEMS
from aswarm._wire.accumulator import Accumulator, Completion
from aswarm._wire.responses_events import ResponseReader
from tests.support.wire.accumulated import Json
from tests.support.wire.drawn_messages import expected_message, interleaved, merged_by_index, messages, pieces_of

pytestmark = pytest.mark.slow

# The keys of this API; the ids are the ids of the items.
_KEYS = {"role", "content", "refusal", "reasoning_content", "tool_calls"}


def as_said(message: Json) -> Json:
    """Return the message with only the keys of the Responses API, and an id for each call."""
    said = {key: value for key, value in message.items() if key in _KEYS}
    calls = [
        {"id": f"call_{number}", "type": "function", "function": made["function"]}
        for number, made in enumerate(message.get("tool_calls", ()))
    ]
    return {**said, "tool_calls": calls} if calls else said


def items_of(message: Json) -> list[Json]:
    """The message as output items."""
    items: list[Json] = []
    if reasoning := message.get("reasoning_content"):
        items.append({"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": reasoning}]})
    parts = [{"type": "output_text", "text": message["content"]}] if message["content"] else []
    parts += [{"type": "refusal", "refusal": message["refusal"]}] if message.get("refusal") else []
    if parts:
        items.append({"type": "message", "id": "msg", "role": "assistant", "content": parts})
    for number, made in enumerate(message.get("tool_calls", ())):
        items.append({"type": "function_call", "id": f"fc_{number}", "call_id": made["id"], **made["function"]})
    return items


_KINDS = {"output_text": "text", "refusal": "refusal", "summary_text": "text"}
_DELTAS = {
    "output_text": "response.output_text.delta",
    "refusal": "response.refusal.delta",
    "summary_text": "response.reasoning_summary_text.delta",
}
_noise: st.SearchStrategy[Json] = st.sampled_from(
    [
        {"type": "response.in_progress", "response": {"status": "in_progress", "output": []}},
        {"type": "keepalive", "sequence_number": 3},
        {"type": "response.web_search_call.searching", "item_id": "ws"},
        {"type": "response.output_text.annotation.added", "annotation": {"type": "url_citation"}},
        {"type": "tomorrow", "delta": "x", "item": None},
    ]
)


@st.composite
def events_of_item(draw: st.DrawFn, item: Json, number: int) -> list[Json]:
    """One item in events, its texts cut anywhere; a server may leave out the deltas."""
    empty: Json = (
        {"arguments": ""} if "arguments" in item else {key: [] for key in ("summary", "content") if key in item}
    )
    where = draw(st.sampled_from([{"output_index": number}, {"item_id": item["id"]}]))
    where = {**where, "item_id": item["id"]} if draw(st.booleans()) else where
    deltas: list[Json] = []
    if draw(st.integers(0, 4)):  # most servers stream
        if "arguments" in item:
            kind = "response.function_call_arguments.delta"
            deltas = [{"type": kind, "delta": piece} for piece in draw(pieces_of(item["arguments"]))]
        for part in item.get("summary") or item.get("content") or ():
            text = part[_KINDS[part["type"]]]
            deltas += [{"type": _DELTAS[part["type"]], "delta": piece} for piece in draw(pieces_of(text))]
    begin = {"type": "response.output_item.added", "item": {**item, **empty}}
    end = {"type": "response.output_item.done", "item": item}
    return [{**event, **where} for event in (begin, *deltas, end)]


@st.composite
def events(draw: st.DrawFn, message: Json) -> list[Json]:
    """The message as the events of some server: one item after another, the calls perhaps mixed."""
    items = items_of(message)
    rows = [draw(events_of_item(item, number)) for number, item in enumerate(items)]
    first = next((number for number, item in enumerate(items) if item["type"] == "function_call"), len(items))
    stream = [event for row in rows[:first] for event in row]
    stream += draw(interleaved(rows[first:]))
    for place, event in draw(st.lists(st.tuples(st.integers(0, len(stream)), _noise), max_size=4)):
        stream.insert(place, event)
    output = items if draw(st.booleans()) else []  # some servers leave it empty in the last event
    return [*stream, {"type": "response.completed", "response": {"status": "completed", "output": output}}]


def read(stream: Sequence[Json]) -> tuple[Completion, list[Json]]:
    """The completion that the events give, and the deltas that are shown on the way."""
    reader, accumulator = ResponseReader(), Accumulator()
    deltas = [accumulator.feed(chunk) for event in stream for chunk in reader.read(event)]
    return accumulator.finish(), [delta for delta in deltas if delta is not None]


@given(st.data())
def test_any_cut_gives_the_same_message(data: st.DataObject) -> None:
    """Any cut of an answer into events gives the original message, with its items."""
    message = as_said(data.draw(messages()))
    completion, _ = read(data.draw(events(message)))
    items = completion.message.pop(OUTPUT_ITEMS, [])
    assert completion.message == expected_message(message)
    assert sorted(items, key=lambda item: item["id"]) == sorted(items_of(message), key=lambda item: item["id"])


@given(st.data())
def test_what_is_shown_adds_up_to_the_message(data: st.DataObject) -> None:
    """A consumer that concatenates the deltas by index gets the message; the items are not shown."""
    message = as_said(data.draw(messages()))
    _, shown = read(data.draw(events(message)))
    merged = merged_by_index(shown)
    for key in ("content", "refusal", "reasoning_content"):
        assert merged.get(key, "") == (message.get(key) or "")
    assert list(merged["calls"].values()) == [
        {"id": made["id"], "type": "function", **made["function"]} for made in message.get("tool_calls", ())
    ]
    assert not any(OUTPUT_ITEMS in delta for delta in shown)


_types = [
    *_DELTAS.values(),
    *("response.output_item.added", "response.output_item.done", "response.completed", "response.failed", "error"),
    *("response.incomplete", "response.function_call_arguments.delta", "message", "function_call", "reasoning", "x"),
]
_keys = ["delta", "item", "item_id", "output_index", "response", "output", "error", "content", "summary", "arguments"]
_garbage = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "completed", "{}", *_types]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from([*_keys, "type", "status", "text", "id", "call_id", "usage"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
_garbled_events = st.fixed_dictionaries(
    {}, optional={"type": st.sampled_from(_types) | _garbage, **dict.fromkeys(_keys, _garbage)}
)


@given(st.lists(_garbled_events, max_size=4))
def test_no_shape_escapes_as_an_internal_error(stream: list[Json]) -> None:
    """Whatever JSON a server sends, reading it succeeds, or raises an error of ours, and nothing else."""
    with suppress(CompletionError, ConfigurationError):
        read(stream)


@given(st.data())
def test_deltas_are_never_changed_later(data: st.DataObject) -> None:
    """A delta that was shown stays as it was, whatever comes after it."""
    reader, accumulator = ResponseReader(), Accumulator()
    handed: list[tuple[Any, Any]] = []
    for event in data.draw(events(as_said(data.draw(messages())))):
        for chunk in reader.read(event):
            delta = accumulator.feed(chunk)
            handed.append((delta, copy.deepcopy(delta)))
    accumulator.finish()
    assert [shown for shown, _ in handed] == [kept for _, kept in handed]

"""The accumulator of calls: which fragments are one call, and what a call keeps."""

from __future__ import annotations

import re

import pytest

from aswarm._wire.accumulator import Accumulator
from tests.support.wire.accumulated import Json, accumulate, deltas_of, message_of, whole
from tests.support.wire.wire_cases import chunk, fragment


def calls_of(*deltas: object) -> list[tuple[str, str]]:
    """Name and arguments of the calls of these deltas."""
    calls = message_of(*deltas)["tool_calls"] or ()
    return [(made["function"]["name"], made["function"]["arguments"]) for made in calls]


def test_calls_interleaved_by_index() -> None:
    """Fragments go to the call of their index, also with no ids at all, and whatever the first index is."""
    fragments = [
        fragment("a", "", index=1),
        fragment("b", "", index=2),
        fragment(None, '{"x"', index=1),
        fragment(None, '{"y"', index=2),
        fragment(None, ":1}", index=1),
        fragment(None, ":2}", index=2),
    ]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == [("a", '{"x":1}'), ("b", '{"y":2}')]


@pytest.mark.parametrize("index", [{}, {"index": None}, {"index": 0}])
def test_a_new_id_with_a_name_is_a_new_call(index: Json) -> None:
    """Without an index, with a null one, or with 0 for all: a new id with a name begins the next call."""
    fragments = [
        fragment("a", "{", id="1", **index),
        fragment(None, "}", **index),
        fragment("b", "", id="2", **index),
        fragment(None, "{}", id="", **index),
    ]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == [("a", "{}"), ("b", "{}")]
    assert calls_of({"tool_calls": fragments}) == [("a", "{}"), ("b", "{}")]


def test_without_an_index_a_fragment_continues_the_call_of_its_id() -> None:
    """Fragments without an index but with the id each time may be interleaved."""
    fragments = [
        fragment("a", "", id="1"),
        fragment("b", "", id="2"),
        fragment(None, '{"x":1}', id="1"),
        fragment(None, '{"y":2}', id="2"),
    ]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == [("a", '{"x":1}'), ("b", '{"y":2}')]


@pytest.mark.parametrize("empty", [{}, {"id": ""}, {"id": None}])
def test_continuations_never_overwrite(empty: Json) -> None:
    """`id: ""`, a null or empty name and a repeated type leave what has come."""
    first = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    for name in ("", None):
        next_one = {"index": 0, "type": "function", "function": {"name": name, "arguments": "{}"}, **empty}
        made = message_of({"tool_calls": [first]}, {"tool_calls": [next_one]})["tool_calls"]
        assert made == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_repeated_ids_types_and_names_are_shown_once() -> None:
    """What a server repeats in every fragment is shown in the first only, so that whoever concatenates is right."""
    fragment = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    first, second = deltas_of({"tool_calls": [fragment]}, {"tool_calls": [fragment]})
    assert first is not None
    assert second is not None
    assert first["tool_calls"] == [fragment]
    nothing = {"index": 0, "id": None, "type": None}
    assert second["tool_calls"] == [{**nothing, "function": {"name": None, "arguments": "{"}}]


def test_a_fragment_without_arguments_shows_none() -> None:
    """Arguments are shown as None if the server sent none, and as empty text if it sent that."""
    shown = deltas_of(*({"tool_calls": [fragment("f", sent, index=0)]} for sent in (None, "")))
    assert [delta and delta["tool_calls"][0]["function"]["arguments"] for delta in shown] == [None, ""]


def test_a_name_in_pieces_is_appended_and_an_equal_one_is_a_repeat() -> None:
    """ "get_" + "weather" is one name; "get_weather" again is a repeat."""
    fragments = [
        fragment("get_", "", index=0, id="c"),
        fragment("weather", "", index=0),
        fragment("get_weather", "{}", index=0),
    ]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == [("get_weather", "{}")]


def test_an_id_that_comes_late_is_taken() -> None:
    """A call whose id comes with a later fragment has that id."""
    message = message_of(
        {"tool_calls": [fragment("f", "", index=0)]}, {"tool_calls": [fragment(None, "{}", index=0, id="c")]}
    )
    assert [made["id"] for made in message["tool_calls"]] == ["c"]


def test_ids_are_made_where_none_came() -> None:
    """Calls without ids get ids, each its own."""
    message = message_of({"tool_calls": [fragment("f", "{}", index=0), fragment("f", "{}", index=1)]})
    ids = [made["id"] for made in message["tool_calls"]]
    assert all(re.fullmatch("call_[0-9a-f]{24}", made) for made in ids), "as those of OpenAI"
    assert len(set(ids)) == 2


def test_without_ids_and_index_a_named_fragment_after_whole_arguments_is_the_next_call() -> None:
    """Whole calls one per chunk, with neither index nor id, are separate calls, also of the same function."""
    fragments = [fragment("f", '{"x":1}'), fragment("f", '{"x":2}'), fragment("g", "{}")]
    expected = [("f", '{"x":1}'), ("f", '{"x":2}'), ("g", "{}")]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == expected
    assert calls_of({"tool_calls": fragments}) == expected


@pytest.mark.parametrize("pieces", [["{}\n "], ['{"x"', ":1}"], ['{"x":1}', "", " \n"]])
def test_without_ids_the_next_call_may_follow_arguments_in_pieces_or_with_blanks(pieces: list[str]) -> None:
    """Arguments are whole however they were cut, and with blanks after them."""
    first = [fragment("f", pieces[0]), *(fragment(None, piece) for piece in pieces[1:])]
    deltas = [{"tool_calls": [item]} for item in (*first, fragment("f", "{}"))]
    assert calls_of(*deltas) == [("f", "".join(pieces)), ("f", "{}")]


def test_without_ids_arguments_that_only_look_whole_go_on() -> None:
    """A fragment that repeats the name after the end of an inner object continues the call: that is no whole JSON."""
    fragments = [fragment("f", '{"x": {"y": 1}'), fragment("f", "}")]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == [("f", '{"x": {"y": 1}}')]


@pytest.mark.parametrize("arguments", ["", None, "{}"])
def test_several_named_calls_in_one_delta_are_several_calls(arguments: str | None) -> None:
    """Items of one list that each have a name are calls of their own, also with no index, no id and no arguments."""
    assert calls_of({"tool_calls": [fragment("a", arguments), fragment("b", arguments)]}) == [
        ("a", arguments or ""),
        ("b", arguments or ""),
    ]


def test_a_fragment_of_an_unknown_index_with_neither_id_nor_name_continues_the_last_call() -> None:
    """A server that gives the index in continuations only has still sent one call."""
    first, second = fragment("f", "", id="c", index=None), fragment(None, "{}", index=0)
    assert calls_of({"tool_calls": [first]}, {"tool_calls": [second]}) == [("f", "{}")]


def test_arguments_sent_as_an_object_become_text() -> None:
    """Arguments that come as an object are their JSON, not escaped."""
    assert calls_of({"tool_calls": [fragment("f", {"city": "Zürich"}, index=0, id="c")]}) == [
        ("f", '{"city": "Zürich"}')
    ]


def test_a_custom_call_keeps_its_form() -> None:
    """A call of type "custom" has name and input under `custom`, in pieces or not."""
    first = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "run", "input": "ls "}}
    second = {"index": 0, "custom": {"input": "-l"}}
    last = {"index": 0, "type": "custom"}  # nothing but what the server repeats
    made = message_of(*({"tool_calls": [item]} for item in (first, second, last)))["tool_calls"]
    assert made == [{"id": "c", "type": "custom", "custom": {"name": "run", "input": "ls -l"}}]


def test_a_call_without_a_function_is_kept() -> None:
    """A call with nothing but an id is a call with an empty name, to be answered as unknown."""
    made = message_of({"tool_calls": [{"index": 0, "id": "c", "type": "function"}]})["tool_calls"]
    assert made == [{"id": "c", "type": "function", "function": {"name": "", "arguments": ""}}]


def test_what_the_provider_put_on_a_call_is_kept() -> None:
    """Gemini's thought signature stands on the call and must come back."""
    extra = {"google": {"thought_signature": "s"}}
    sent = {**fragment("f", "{}", index=0, id="c"), "extra_content": extra, "nothing": None}
    accumulator = Accumulator()
    delta = accumulator.feed(chunk({"tool_calls": [sent]}, "tool_calls"))
    assert delta is not None
    assert delta["tool_calls"][0]["extra_content"] == extra
    assert accumulator.finish().message["tool_calls"][0]["extra_content"] == extra


def test_what_the_provider_put_inside_the_function_is_kept() -> None:
    """LiteLLM puts the thought signature into `function.provider_specific_fields`; it must come back as well."""
    fields = {"thought_signature": "s"}
    function = {"name": "f", "arguments": "{}", "provider_specific_fields": fields}
    message = message_of({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]})
    assert message["tool_calls"][0]["function"] == function


def test_empty_tool_calls_are_no_calls() -> None:
    """`tool_calls: []` in text deltas makes no tool turn."""
    assert message_of({"content": "a", "tool_calls": []})["tool_calls"] is None


@pytest.mark.parametrize("fields", [{"id": "same"}, {}])
@pytest.mark.parametrize("arguments", ['{"x": 1}', "", '{"x": '])
def test_every_call_of_a_whole_message_is_a_call_of_its_own(fields: Json, arguments: str) -> None:
    """In a whole message the position tells calls apart: equal or missing ids, equal names, empty or cut arguments."""
    calls = [{**fragment("f", arguments), "type": "function", **fields} for _ in range(3)]
    message = accumulate([whole({"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls")]).message
    assert [made["function"] for made in message["tool_calls"]] == [{"name": "f", "arguments": arguments}] * 3

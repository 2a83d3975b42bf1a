"""The accumulator: usage, errors, the end of a stream, and the fragments of tool calls."""

from __future__ import annotations

import datetime as dt
import re

import pytest

from aswarm import CompletionError
from aswarm.extensions import Accumulator
from tests.support.wire.accumulated import Json, accumulate, deltas_of, message_of, whole
from tests.support.wire.wire_cases import chunk, fragment


def test_usage_inside_the_choice_counts() -> None:
    """Moonshot reports usage on the choice."""
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"total_tokens": 3}}
    assert accumulate([{"choices": [choice]}]).usage.total_tokens == 3


@pytest.mark.parametrize(
    ("error", "status", "retryable", "text"),
    [
        ({"message": "too much", "code": 429}, 429, True, "too much (code 429)"),
        ({"message": "broken", "code": "500"}, 500, True, "broken (code 500)"),
        ({"message": "bad", "status": 400}, 400, False, "bad (code 400)"),
        ({"message": "busy", "type": "overloaded_error"}, None, True, "busy (code overloaded_error)"),
        ({"message": "odd", "code": "server_error"}, None, True, "odd (code server_error)"),
        ({"message": "no"}, None, False, "no"),
        ({"detail": "für"}, None, False, '{"detail": "für"}'),
        ({"detail": dt.date(2026, 11, 22)}, None, False, '{"detail": "2026-11-22"}'),
        ("just text", None, False, "just text"),
    ],
)
def test_an_error_in_a_chunk(error: object, status: int | None, retryable: bool, text: str) -> None:
    """An error in a chunk is a CompletionError with its message, its code and whether trying again may help."""
    with pytest.raises(CompletionError) as caught:
        Accumulator().feed({"error": error})
    assert str(caught.value) == f"the provider reported an error: {text}"
    assert (caught.value.status_code, caught.value.retryable) == (status, retryable)


def test_a_code_that_is_no_http_status_is_not_retryable() -> None:
    """A provider's own number (Zhipu's 1301 is a refused content) is no reason to retry."""
    with pytest.raises(CompletionError) as caught:
        Accumulator().feed({"error": {"message": "sensitive content", "code": "1301"}})
    assert not caught.value.retryable


def test_an_error_that_is_only_a_finish_reason() -> None:
    """OpenRouter sends it without an error beside it; the text so far stays."""
    accumulator = Accumulator()
    accumulator.feed(chunk({"content": "Hel"}))
    with pytest.raises(CompletionError, match=r"^the provider ended the completion with finish_reason 'error'$"):
        accumulator.feed(chunk({}, "error"))
    assert accumulator.text == "Hel"


def test_a_chunk_of_another_shape_is_quoted() -> None:
    """A value that cannot be a chunk is a CompletionError that quotes it."""
    with pytest.raises(
        CompletionError, match=r"^the provider sent something that is not a completion: \{'choices': 7\}$"
    ):
        Accumulator().feed({"choices": 7})


def calls_of(*deltas: object) -> list[tuple[str, str]]:
    """Name and arguments of the calls of these deltas."""
    calls = message_of(*deltas)["tool_calls"] or ()
    return [(made["function"]["name"], made["function"]["arguments"]) for made in calls]


def test_without_an_index_a_fragment_continues_the_call_of_its_id() -> None:
    """Fragments without an index but with the id each time may be interleaved."""
    fragments = [
        fragment("a", "", id="1"),
        fragment("b", "", id="2"),
        fragment(None, '{"x":1}', id="1"),
        fragment(None, '{"y":2}', id="2"),
    ]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == [("a", '{"x":1}'), ("b", '{"y":2}')]


def test_a_fragment_without_arguments_shows_none() -> None:
    """Arguments are shown as None if the server sent none, and as empty text if it sent that."""
    shown = deltas_of(*({"tool_calls": [fragment("f", sent, index=0)]} for sent in (None, "")))
    assert [delta and delta["tool_calls"][0]["function"]["arguments"] for delta in shown] == [None, ""]


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
    last = {"index": 0, "type": "custom"}  # only parts that the server repeats
    made = message_of(*({"tool_calls": [item]} for item in (first, second, last)))["tool_calls"]
    assert made == [{"id": "c", "type": "custom", "custom": {"name": "run", "input": "ls -l"}}]


def test_a_call_without_a_function_is_kept() -> None:
    """A call with nothing but an id is a call with an empty name, to be answered as unknown."""
    made = message_of({"tool_calls": [{"index": 0, "id": "c", "type": "function"}]})["tool_calls"]
    assert made == [{"id": "c", "type": "function", "function": {"name": "", "arguments": ""}}]


@pytest.mark.parametrize("fields", [{"id": "same"}, {}])
@pytest.mark.parametrize("arguments", ['{"x": 1}', "", '{"x": '])
def test_every_call_of_a_whole_message_is_a_call_of_its_own(fields: Json, arguments: str) -> None:
    """In a whole message calls differ by their position: equal or missing ids, equal names, empty or cut arguments."""
    calls = [{**fragment("f", arguments), "type": "function", **fields} for _ in range(3)]
    message = accumulate([whole({"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls")]).message
    assert [made["function"] for made in message["tool_calls"]] == [{"name": "f", "arguments": arguments}] * 3


def test_text_after_the_arguments_of_a_call() -> None:
    """A call whose arguments go on after their last bracket is not complete."""
    accumulator = Accumulator()
    accumulator.feed(chunk({"tool_calls": [fragment("f", "{}", index=0, id="c")]}))
    (call,) = accumulator._calls.calls
    assert call.is_complete()
    accumulator.feed(chunk({"tool_calls": [fragment(None, "{}", index=0)]}))
    assert not call.is_complete()
    accumulator._calls.mark_done(7)  # a server may report the end of another item
    assert not call.is_done

"""The fold: whatever way a completion is cut into chunks, the message is the same.

The rules of `wire-cases.md` as sentences first, then the properties behind them: any cut gives the same message, what is
shown adds up to it, nothing shown is changed later, and no shape whatever escapes as an `AttributeError`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aswarm import CompletionError, StreamInterrupted, Usage
from aswarm._accumulator import Accumulator, Completion

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


def calls_of(*deltas: object) -> list[tuple[str, str]]:
    """Name and arguments of the calls of these deltas."""
    calls = message_of(*deltas)["tool_calls"] or ()
    return [(made["function"]["name"], made["function"]["arguments"]) for made in calls]


def deltas_of(*deltas: object) -> list[Json | None]:
    """What is shown of these deltas."""
    accumulator = Accumulator()
    return [accumulator.feed(chunk(delta)) for delta in deltas]


# --- text and keys ----------------------------------------------------------------------------------------------------


def test_text_is_joined() -> None:
    """Content pieces become one text, and empty or null ones add nothing."""
    assert message_of({"content": "Hel"}, {"content": None}, {"content": ""}, {"content": "lo"})["content"] == "Hello"


def test_a_message_has_four_own_keys_at_most() -> None:
    """A plain answer is role, content and tool_calls, and nothing else."""
    assert message_of({"content": "Hi"}) == {"role": "assistant", "content": "Hi", "tool_calls": None}


def test_an_empty_answer_with_a_finish_is_empty_text() -> None:
    """A finish with no content at all is an answer with empty text, for the provider said that it is whole."""
    completion = fold([chunk({}, "stop")])
    assert (completion.message["content"], completion.finish_reason) == ("", "stop")


@pytest.mark.parametrize("delta", [{"tool_calls": [wire_call("f", "{}", id="c")]}, {"refusal": "No."}])
def test_no_text_beside_calls_or_a_refusal_is_null(delta: Json) -> None:
    """As OpenAI has it, the content of a message with calls or a refusal and no text is None."""
    assert message_of({"content": ""}, delta)["content"] is None


def test_the_role_is_shown_once() -> None:
    """The role is "assistant", on the first delta only, whether the server sends it never, once, or always."""
    for role in ({}, {"role": None}, {"role": "assistant"}):
        shown = deltas_of({**role, "content": "a"}, {**role, "content": "b"})
        assert [delta and delta["role"] for delta in shown] == ["assistant", None]


def test_a_delta_has_the_three_keys_always() -> None:
    """A shown delta has role, content and tool_calls, None where absent; empty content is None."""
    assert deltas_of({"content": ""}) == [{"role": "assistant", "content": None, "tool_calls": None}]


def test_a_fragment_has_all_its_keys_always() -> None:
    """A shown fragment has index, id, type, function.name and function.arguments, None where absent."""
    delta = deltas_of({"tool_calls": [{"index": 3, "function": {"arguments": "{"}}]})[0]
    nothing = {"id": None, "type": None}
    assert delta is not None
    assert delta["tool_calls"] == [{"index": 0, **nothing, "function": {"name": None, "arguments": "{"}}]


@pytest.mark.parametrize("nothing", [{"choices": []}, {"choices": None}, {}, chunk(None), chunk({})])
def test_a_chunk_without_a_delta_shows_nothing(nothing: Json) -> None:
    """Chunks without choices, and choices without a delta, are skipped wherever they stand."""
    accumulator = Accumulator()
    assert accumulator.feed(nothing) is None
    assert accumulator.feed({"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]}) is not None
    assert accumulator.feed(nothing) is None
    assert accumulator.finish().message["content"] == "Hi"


def test_only_the_first_choice_counts() -> None:
    """A second choice (n=2) is not mixed into the first."""
    second = {"choices": [{"index": 1, "delta": {"content": "other"}, "finish_reason": "stop"}]}
    assert fold([chunk({"content": "one"}), second, chunk({}, "length")]).message["content"] == "one"


def test_unknown_strings_are_joined_and_shown() -> None:
    """Reasoning, refusals and keys that nobody listed are folded and passed on in the deltas."""
    shown = deltas_of({"reasoning_content": "Hm", "vendor": "x"}, {"reasoning_content": "m.", "vendor": "y"})
    assert [delta and delta["reasoning_content"] for delta in shown] == ["Hm", "m."]
    message = message_of({"reasoning_content": "Hm", "vendor": "x"}, {"reasoning_content": "m.", "vendor": "y"})
    assert (message["reasoning_content"], message["vendor"]) == ("Hmm.", "xy")


def test_reasoning_details_with_an_index_are_merged() -> None:
    """OpenRouter's reasoning items: text joined by index, their type and id kept once, a signature kept."""
    first = {"index": 0, "type": "reasoning.text", "id": "r", "text": "Let ", "signature": None}
    second = {"index": 0, "type": "reasoning.text", "id": "r", "text": "me."}
    third = {"index": 0, "signature": "sig"}
    other = {"index": 1, "type": "reasoning.encrypted", "data": "AAA"}
    message = message_of(*({"reasoning_details": [item]} for item in (first, second, other, third)))
    merged = {"index": 0, "type": "reasoning.text", "id": "r", "text": "Let me.", "signature": "sig"}
    assert message["reasoning_details"] == [merged, other]


def test_lists_without_an_index_are_extended() -> None:
    """List items of a key that only the provider knows are appended, in order."""
    assert message_of({"cites": [{"a": 1}, 1]}, {"cites": ["x", {"a": 2}]})["cites"] == [{"a": 1}, 1, "x", {"a": 2}]


def test_dicts_are_merged_and_numbers_replaced() -> None:
    """A dict in pieces is merged deeply, its names kept once, its numbers and flags replaced by the last."""
    pieces = [{"audio": {"id": "a", "data": "AA", "n": 1}}, {"audio": {"id": "a", "data": "BB", "n": 2, "x": None}}]
    assert message_of(*pieces)["audio"] == {"id": "a", "data": "AABB", "n": 2}


def test_null_and_empty_keys_leave_no_trace() -> None:
    """`refusal: null` and `annotations: []`, which OpenAI sends with every message, are not kept."""
    assert set(message_of({"content": "x", "refusal": None, "annotations": []})) == {"role", "content", "tool_calls"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("s", [1]),
        ([1], "s"),
        ({"a": 1}, [1]),
        ([1], {"a": 1}),
        (1, [1]),
        (1, {"a": 1}),
        ({"a": 1}, "s"),
        ("s", {"a": 1}),
    ],
)
def test_a_key_that_changes_its_type_does_no_harm(first: object, second: object) -> None:
    """A key that comes as one type and then as another ends the completion no differently, and keeps one of them."""
    message = message_of({"content": "ok", "key": first}, {"key": second}, {"key": copy.deepcopy(second)})
    assert message["content"] == "ok"
    assert "key" in message


def test_content_in_parts() -> None:
    """Content that comes as a list of parts stays a list; its text is the partial text as well."""
    accumulator = Accumulator()
    accumulator.feed(chunk({"content": [{"type": "text", "text": "a"}]}))
    accumulator.feed(chunk({"content": [{"type": "image_url", "image_url": {"url": "u"}}]}, "stop"))
    assert accumulator.text == "a"
    assert accumulator.finish().message["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "u"}},
    ]


@pytest.mark.parametrize("pieces", [["Hello"], ["Hel", "lo"], ["H", "e", "l", "l", "o"]])
def test_text_around_parts_is_one_part_however_it_was_cut(pieces: list[str]) -> None:
    """Mistral streams thinking as parts and then text as strings: the text is one part, in any cut."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    said = {"type": "text", "text": "Hello"}
    texts = [{"content": piece} for piece in pieces]
    assert message_of({"content": [thinking]}, *texts)["content"] == [thinking, said]
    assert message_of(*texts, {"content": [thinking]})["content"] == [said, thinking]


def test_the_deprecated_function_call_beside_calls_is_dropped() -> None:
    """llama-cpp-python sends the first call twice, once as `function_call`: it is one call."""
    message = message_of(
        {"function_call": {"name": "f", "arguments": "{"}, "tool_calls": [wire_call("f", "{", index=0, id="c")]},
        {"function_call": {"name": "f", "arguments": "}"}, "tool_calls": [wire_call("f", "}", index=0, id="c")]},
    )
    assert "function_call" not in message
    assert message["tool_calls"] == [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def test_a_function_call_alone_is_kept_as_the_provider_sent_it() -> None:
    """A `function_call` with no `tool_calls` is the provider's key: folded and echoed, never a call."""
    message = message_of({"function_call": {"name": "f", "arguments": "{"}}, {"function_call": {"arguments": "}"}})
    assert (message["function_call"], message["tool_calls"]) == ({"name": "f", "arguments": "{}"}, None)


# --- calls ------------------------------------------------------------------------------------------------------------


def test_calls_interleaved_by_index() -> None:
    """Fragments go to the call of their index, also with no ids at all, and whatever the first index is."""
    fragments = [
        wire_call("a", "", index=1),
        wire_call("b", "", index=2),
        wire_call(None, '{"x"', index=1),
        wire_call(None, '{"y"', index=2),
        wire_call(None, ":1}", index=1),
        wire_call(None, ":2}", index=2),
    ]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == [("a", '{"x":1}'), ("b", '{"y":2}')]


@pytest.mark.parametrize("index", [{}, {"index": None}, {"index": 0}])
def test_a_new_id_with_a_name_is_a_new_call(index: Json) -> None:
    """Without an index, with a null one, or with 0 for all: a new id with a name begins the next call."""
    fragments = [
        wire_call("a", "{", id="1", **index),
        wire_call(None, "}", **index),
        wire_call("b", "", id="2", **index),
        wire_call(None, "{}", id="", **index),
    ]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == [("a", "{}"), ("b", "{}")]
    assert calls_of({"tool_calls": fragments}) == [("a", "{}"), ("b", "{}")]


def test_without_an_index_a_fragment_continues_the_call_of_its_id() -> None:
    """Fragments without an index but with the id each time may be interleaved."""
    fragments = [
        wire_call("a", "", id="1"),
        wire_call("b", "", id="2"),
        wire_call(None, '{"x":1}', id="1"),
        wire_call(None, '{"y":2}', id="2"),
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


def test_a_name_in_pieces_is_appended_and_an_equal_one_is_a_repeat() -> None:
    """ "get_" + "weather" is one name; "get_weather" again is a repeat."""
    fragments = [
        wire_call("get_", "", index=0, id="c"),
        wire_call("weather", "", index=0),
        wire_call("get_weather", "{}", index=0),
    ]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == [("get_weather", "{}")]


def test_an_id_that_comes_late_is_taken() -> None:
    """A call whose id comes with a later fragment has that id."""
    message = message_of(
        {"tool_calls": [wire_call("f", "", index=0)]}, {"tool_calls": [wire_call(None, "{}", index=0, id="c")]}
    )
    assert [made["id"] for made in message["tool_calls"]] == ["c"]


def test_ids_are_made_where_none_came() -> None:
    """Calls without ids get ids, each its own."""
    message = message_of({"tool_calls": [wire_call("f", "{}", index=0), wire_call("f", "{}", index=1)]})
    ids = [made["id"] for made in message["tool_calls"]]
    assert all(isinstance(made, str) and made for made in ids)
    assert len(set(ids)) == 2


def test_without_ids_and_index_a_named_fragment_after_whole_arguments_is_the_next_call() -> None:
    """Whole calls one per chunk, with neither index nor id, are separate calls, also of the same function."""
    fragments = [wire_call("f", '{"x":1}'), wire_call("f", '{"x":2}'), wire_call("g", "{}")]
    expected = [("f", '{"x":1}'), ("f", '{"x":2}'), ("g", "{}")]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == expected
    assert calls_of({"tool_calls": fragments}) == expected


def test_without_ids_arguments_that_only_look_whole_go_on() -> None:
    """A fragment that repeats the name after the end of an inner object continues the call: that is no whole JSON."""
    fragments = [wire_call("f", '{"x": {"y": 1}'), wire_call("f", "}")]
    assert calls_of(*({"tool_calls": [item]} for item in fragments)) == [("f", '{"x": {"y": 1}}')]


@pytest.mark.parametrize("arguments", ["", None, "{}"])
def test_several_named_calls_in_one_delta_are_several_calls(arguments: str | None) -> None:
    """Items of one list that each have a name are calls of their own, also with no index, no id and no arguments."""
    assert calls_of({"tool_calls": [wire_call("a", arguments), wire_call("b", arguments)]}) == [
        ("a", arguments or ""),
        ("b", arguments or ""),
    ]


def test_a_fragment_of_an_unknown_index_with_neither_id_nor_name_continues_the_last_call() -> None:
    """A server that gives the index in continuations only has still sent one call."""
    first, second = wire_call("f", "", id="c", index=None), wire_call(None, "{}", index=0)
    assert calls_of({"tool_calls": [first]}, {"tool_calls": [second]}) == [("f", "{}")]


def test_arguments_sent_as_an_object_become_text() -> None:
    """Arguments that come as an object are their JSON, not escaped."""
    assert calls_of({"tool_calls": [wire_call("f", {"city": "Zürich"}, index=0, id="c")]}) == [
        ("f", '{"city": "Zürich"}')
    ]


def test_a_custom_call_keeps_its_form() -> None:
    """A call of type "custom" has name and input under `custom`, in pieces or not."""
    first = {"index": 0, "id": "c", "type": "custom", "custom": {"name": "run", "input": "ls "}}
    second = {"index": 0, "custom": {"input": "-l"}}
    made = message_of({"tool_calls": [first]}, {"tool_calls": [second]})["tool_calls"]
    assert made == [{"id": "c", "type": "custom", "custom": {"name": "run", "input": "ls -l"}}]


def test_a_call_without_a_function_is_kept() -> None:
    """A call with nothing but an id is a call with an empty name, to be answered as unknown."""
    made = message_of({"tool_calls": [{"index": 0, "id": "c", "type": "function"}]})["tool_calls"]
    assert made == [{"id": "c", "type": "function", "function": {"name": "", "arguments": ""}}]


def test_what_the_provider_put_on_a_call_is_kept() -> None:
    """Gemini's thought signature stands on the call and must come back."""
    extra = {"google": {"thought_signature": "s"}}
    fragment = {**wire_call("f", "{}", index=0, id="c"), "extra_content": extra, "nothing": None}
    accumulator = Accumulator()
    delta = accumulator.feed(chunk({"tool_calls": [fragment]}, "tool_calls"))
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
    calls = [{**wire_call("f", arguments), "type": "function", **fields} for _ in range(3)]
    message = fold([whole({"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls")]).message
    assert [made["function"] for made in message["tool_calls"]] == [{"name": "f", "arguments": arguments}] * 3


# --- usage, errors, the end -------------------------------------------------------------------------------------------


def test_the_last_usage_that_is_not_null_counts() -> None:
    """Cumulative usage is not added up, and a null at the end does not erase it."""
    parts = [
        chunk({"content": "a"}, usage={"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}),
        chunk(
            {"content": "b"}, "stop", usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "cost": 0.5}
        ),
        {"choices": [], "usage": None, "timings": {"n": 1}},
    ]
    usage = fold(parts).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.requests) == (5, 2, 7, 1)
    assert usage.details == {"cost": 0.5}


def test_usage_inside_the_choice_counts() -> None:
    """Moonshot reports usage on the choice."""
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"total_tokens": 3}}
    assert fold([{"choices": [choice]}]).usage.total_tokens == 3


def test_no_usage_is_unknown() -> None:
    """Where no usage came the counts are 0 and one request is counted."""
    usage = fold([chunk({"content": "a"}, "stop")]).usage
    assert (usage.total_tokens, usage.requests, usage.details) == (0, 1, {})


@pytest.mark.parametrize("usage", ["x", [1], 7, {"total_tokens": "many"}, {"total_tokens": [1], "x": None}])
def test_usage_that_is_none_is_unknown(usage: object) -> None:
    """Usage that is no usage is unknown, and no error."""
    assert fold([chunk({"content": "a"}, "stop", usage=usage)]).usage == Usage(requests=1)


@pytest.mark.parametrize(
    ("error", "status", "retryable", "text"),
    [
        ({"message": "too much", "code": 429}, 429, True, "too much (code 429)"),
        ({"message": "broken", "code": "500"}, 500, True, "broken (code 500)"),
        ({"message": "bad", "status": 400}, 400, False, "bad (code 400)"),
        ({"message": "busy", "type": "overloaded_error"}, None, True, "busy (code overloaded_error)"),
        ({"message": "odd", "code": "server_error"}, None, True, "odd (code server_error)"),
        ({"message": "no"}, None, False, "no"),
        ({"detail": "what"}, None, False, '{"detail": "what"}'),
        ("just text", None, False, "just text"),
    ],
)
def test_an_error_in_a_chunk(error: object, status: int | None, retryable: bool, text: str) -> None:
    """An error in a chunk is a CompletionError with its message, its code and whether trying again may help."""
    with pytest.raises(CompletionError) as caught:
        Accumulator().feed({"error": error})
    assert text in str(caught.value)
    assert (caught.value.status_code, caught.value.retryable) == (status, retryable)


def test_a_code_that_is_no_http_status_is_not_retryable() -> None:
    """A provider's own number (Zhipu's 1301 is a refused content) says nothing about trying again."""
    with pytest.raises(CompletionError) as caught:
        Accumulator().feed({"error": {"message": "sensitive content", "code": "1301"}})
    assert not caught.value.retryable


@pytest.mark.parametrize(
    "failing",
    [
        {"choices": [{"index": 0, "error": {"message": "cut off"}, "finish_reason": "error"}]},
        chunk({"content": ""}, "error", error={"message": "cut off", "code": 502}),
        chunk({}, "error"),
    ],
)
def test_an_error_beside_or_instead_of_a_choice(failing: Json) -> None:
    """OpenRouter's errors: in the choice, beside the choices, or only as finish reason; the text so far stays."""
    accumulator = Accumulator()
    accumulator.feed(chunk({"content": "Hel"}))
    with pytest.raises(CompletionError):
        accumulator.feed(failing)
    assert accumulator.text == "Hel"


def test_no_finish_reason_is_an_interruption() -> None:
    """A completion that has begun and has no finish reason is StreamInterrupted, and its text is kept."""
    accumulator = Accumulator()
    accumulator.feed(chunk({"content": "Hel"}))
    with pytest.raises(StreamInterrupted, match="without a finish_reason"):
        accumulator.finish()
    assert accumulator.text == "Hel"


def test_nothing_at_all_is_an_interruption() -> None:
    """An answer with no completion in it is StreamInterrupted and says so."""
    with pytest.raises(StreamInterrupted, match="empty"):
        Accumulator().finish()


def test_a_finish_reason_is_kept_from_being_erased() -> None:
    """A null finish reason after the real one (Azure's late chunks) does not take it back."""
    assert (
        fold([chunk({"content": "a"}), chunk({}, "length"), chunk({"content": None}, None)]).finish_reason == "length"
    )


def test_a_whole_message_needs_no_finish_reason() -> None:
    """A whole completion is whole: a mock or a server that leaves the finish reason out has still answered."""
    assert fold([whole({"role": "assistant", "content": "Hi"}, None)]).message["content"] == "Hi"


# --- properties -------------------------------------------------------------------------------------------------------

_values = st.recursive(
    st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "id", "type"]), inner, max_size=3)
    ),
    max_leaves=6,
)
_arguments = st.dictionaries(st.text(max_size=4), _values, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    """The text in any cut."""
    places = sorted(draw(st.sets(st.integers(1, max(len(text) - 1, 1)), max_size=5))) if text else []
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def name_pieces(draw: st.DrawFn, name: str) -> list[str]:
    """The name in any cut in which no piece equals what stands before it: that would be a repeat."""
    pieces = draw(pieces_of(name))
    so_far = ""
    for piece in pieces:
        if piece == so_far:
            return [name]
        so_far += piece
    return pieces


@st.composite
def messages(draw: st.DrawFn) -> Json:
    """A message as a server means it; calls may lack an id."""
    message: Json = {"role": "assistant", "content": draw(st.none() | st.text(max_size=12))}
    for key in draw(st.sets(st.sampled_from(["reasoning_content", "refusal", "vendor_key"]))):
        message[key] = draw(st.text(min_size=1, max_size=12))
    calls: list[Json] = []
    for number in range(draw(st.integers(0, 3))):
        name, arguments = draw(st.from_regex(r"[a-z_]{1,10}", fullmatch=True)), draw(_arguments | st.just(""))
        made: Json = {"type": "function", "function": {"name": name, "arguments": arguments}}
        if draw(st.booleans()):
            made = {"id": f"call_{number}", **made}
        if draw(st.booleans()):
            made["extra_content"] = {"google": {"thought_signature": f"s{number}"}}
        calls.append(made)
    return {**message, "tool_calls": calls} if calls else message


@st.composite
def fragments_of(draw: st.DrawFn, made: Json) -> list[Json]:
    """One call in fragments: ids, types and names once or each time, names in pieces, arguments cut anywhere."""
    name, arguments = made["function"]["name"], made["function"]["arguments"]
    parts = [wire_call(piece, draw(st.sampled_from([None, ""]))) for piece in draw(name_pieces(name))]
    always_named = len(parts) == 1 and draw(st.booleans())
    parts += [wire_call(name if always_named else None, piece) for piece in draw(pieces_of(arguments))]
    repeated = draw(st.booleans())
    empty_id: Json = draw(st.sampled_from([{}, {"id": ""}, {"id": None}]))
    for number, part in enumerate(parts):
        if "id" in made:
            part.update({"id": made["id"]} if number == 0 or repeated else empty_id)
        if number == 0 or repeated:
            part["type"] = "function"
    if "extra_content" in made:
        draw(st.sampled_from(parts))["extra_content"] = made["extra_content"]
    return parts


@st.composite
def interleaved(draw: st.DrawFn, rows: list[list[Json]]) -> list[Json]:
    """The rows mixed, the order within each kept, and the first of each in the order of the rows."""
    mixed = [row.pop(0) for row in rows]
    while rows := [row for row in rows if row]:
        mixed.append(draw(st.sampled_from(rows)).pop(0))
    return mixed


_noise: st.SearchStrategy[Json] = st.sampled_from(
    [
        {"choices": []},
        {"choices": None},
        {"choices": [], "prompt_filter_results": [{"index": 0}]},
        chunk(None),
        chunk({}),
        chunk({"content": ""}),
        chunk({"role": "assistant", "content": None, "tool_calls": None}),
        chunk({"tool_calls": []}),
        {"choices": [{"index": 0, "finish_reason": None}]},
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
    ]
)


@st.composite
def cut(draw: st.DrawFn, message: Json) -> list[Json]:
    """The message as the chunks of some server."""
    deltas: list[Json] = []
    for key in draw(st.permutations([key for key in message if key not in ("role", "tool_calls")])):
        deltas += [{key: piece} for piece in draw(pieces_of(message[key] or ""))]
    rows = [draw(fragments_of(made)) for made in message.get("tool_calls", ())]
    for index, row in enumerate(rows):
        for part in row:
            part["index"] = index
    deltas += [{"tool_calls": [part]} for part in draw(interleaved(rows))]
    role = draw(st.sampled_from(["missing", "first", "every", "null"]))
    for number, delta in enumerate(deltas):
        if role == "every" or (role == "first" and number == 0):
            delta["role"] = "assistant"
        elif role == "null":
            delta["role"] = None
    chunks = [chunk(delta) for delta in deltas]
    chunks.append(chunk({}, "tool_calls" if rows else "stop"))
    if draw(st.booleans()):
        for number, item in enumerate(chunks):
            item["usage"] = {"prompt_tokens": 7, "completion_tokens": number, "total_tokens": 7 + number}
    for place, item in draw(st.lists(st.tuples(st.integers(0, len(chunks)), _noise), max_size=4)):
        chunks.insert(place, item)
    return chunks


def expected_message(message: Json) -> Json:
    """The message as it is recorded, with None for ids that are to be made."""
    calls = [{"id": None, **made} for made in message.get("tool_calls", ())]
    content = message["content"] or (None if calls or message.get("refusal") else "")
    return {**message, "content": content, "tool_calls": calls or None}


def without_made_ids(folded: Json, message: Json) -> Json:
    """The folded message with None in place of the ids that had to be made."""
    calls = folded["tool_calls"] or []
    sent = message.get("tool_calls", [])
    assert len(calls) == len(sent)
    assert len({made["id"] for made in calls}) == len(calls)
    shown = [made if "id" in given_call else {**made, "id": None} for made, given_call in zip(calls, sent, strict=True)]
    return {**folded, "tool_calls": shown or None}


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_any_cut_gives_the_same_message(data: st.DataObject) -> None:
    """However a completion is cut into chunks, the folded message is the one that was meant."""
    message = data.draw(messages())
    completion = fold(data.draw(cut(message)))
    assert without_made_ids(completion.message, message) == expected_message(message)


@given(messages())
@settings(deadline=None, max_examples=100)
def test_a_whole_completion_gives_the_same_as_its_chunks(message: Json) -> None:
    """A whole completion gives the message that any of its cuts would give."""
    completion = fold([whole(message, "tool_calls")])
    assert without_made_ids(completion.message, message) == expected_message(message)


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_sequential_calls_need_no_index(data: st.DataObject) -> None:
    """Calls one after another, each with an id, need no index, and may all have the index 0."""
    message = data.draw(messages().filter(lambda made: all("id" in item for item in made.get("tool_calls", ()))))
    same: Json = data.draw(st.sampled_from([{}, {"index": None}, {"index": 0}]))
    parts = [{**part, **same} for made in message.get("tool_calls", ()) for part in data.draw(fragments_of(made))]
    completion = fold(
        [chunk({"content": message["content"]}), *(chunk({"tool_calls": [part]}) for part in parts), chunk({}, "stop")]
    )
    assert completion.message["tool_calls"] == expected_message(message)["tool_calls"]


def merged_by_index(shown: Iterable[Json]) -> Json:
    """What a consumer in Swarm's manner makes of the deltas: strings concatenated, calls by their index."""
    merged: Json = {"calls": {}}
    for delta in shown:
        for key, value in delta.items():
            if isinstance(value, str):
                merged[key] = merged.get(key, "") + value
        for fragment in delta["tool_calls"] or ():
            made = merged["calls"].setdefault(fragment["index"], {"id": "", "type": "", "name": "", "arguments": ""})
            for key, value in {**fragment, **fragment["function"]}.items():
                if key in made:
                    made[key] += value or ""
                elif key == "extra_content":
                    made[key] = value
    return merged


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_what_is_shown_adds_up_to_the_message(data: st.DataObject) -> None:
    """Whoever concatenates the deltas by index gets the message; ids that were made are the only thing not shown."""
    message = data.draw(messages())
    accumulator = Accumulator()
    shown = [delta for item in data.draw(cut(message)) if (delta := accumulator.feed(item)) is not None]
    merged = merged_by_index(shown)
    for key in message.keys() - {"tool_calls", "role"}:
        assert merged.get(key, "") == (message[key] or "")
    assert merged.get("role", "assistant") == "assistant"
    assert list(merged["calls"]) == list(range(len(merged["calls"])))
    extras = ("extra_content",)
    assert list(merged["calls"].values()) == [
        {
            "id": made.get("id", ""),
            "type": "function",
            **made["function"],
            **{key: made[key] for key in extras if key in made},
        }
        for made in message.get("tool_calls", ())
    ]


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
@settings(deadline=None, max_examples=300)
def test_no_shape_escapes_as_an_internal_error(chunks: list[Json]) -> None:
    """Whatever JSON a server sends, folding it succeeds or raises a CompletionError, and nothing else."""
    accumulator = Accumulator()
    try:
        for item in chunks:
            accumulator.feed(item)
        accumulator.finish()
    except CompletionError:
        pass


@given(st.lists(st.fixed_dictionaries({}, optional={"content": _values, "x": _values, "y": _values}), max_size=5))
@settings(deadline=None, max_examples=150)
def test_deltas_are_never_changed_later(deltas: list[Json]) -> None:
    """A delta that was handed out stays as it was, whatever comes after it and whatever the fold does."""
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


@given(_values)
@settings(deadline=None, max_examples=100)
def test_a_key_of_a_whole_message_stays_as_it_is(value: object) -> None:
    """What only the provider knows is kept unchanged when it comes whole."""
    message = fold([whole({"role": "assistant", "content": "a", "vendor": value})]).message
    assert message.get("vendor", []) == value


def test_a_long_answer_costs_no_square() -> None:
    """Text, arguments and reasoning are joined late: thirty thousand pieces of each are nothing."""
    accumulator = Accumulator()
    for _ in range(30_000):
        accumulator.feed(
            chunk({"content": "x", "reasoning_content": "y", "tool_calls": [wire_call(None, "z", index=0)]})
        )
    accumulator.feed(chunk({}, "length"))
    message = accumulator.finish().message
    assert len(message["content"]) == len(message["reasoning_content"]) == 30_000

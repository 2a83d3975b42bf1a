"""The reader of Claude's answers: the message is the same from events, from a whole answer, and after any cut of the texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import CompletionError, Usage
from aswarm._wire.accumulator import Accumulator, Completion
from aswarm._wire.anthropic_blocks import blocks_to_replay, message_of
from aswarm._wire.anthropic_events import AnthropicReader
from aswarm._wire.responses_events import EventDecoder
from aswarm.errors import StreamInterrupted
from tests.support.anthropic_rules import events_of

Json = dict[str, Any]
ORIGIN = {"model": "claude-sonnet-4-6", "prefix": "p"}
CITATION = {"type": "char_location", "cited_text": "x", "document_index": 0, "start_char_index": 0, "end_char_index": 1}
TEXTS = st.text(max_size=12)
BLOCKS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, TEXTS),
        st.builds(lambda text: {"type": "text", "text": text, "citations": [CITATION]}, TEXTS),
        st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "sig"}, TEXTS),
        st.just({"type": "redacted_thinking", "data": "abc"}),
        st.just({"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"query": "x"}}),
        st.just({"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}),
        st.just({"type": "compaction", "content": "Summary."}),
    ),
    max_size=6,
)
CALLS = st.lists(st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.none()), max_size=3), max_size=3)


def whole(blocks: list[Json], stop: str | None = "end_turn", **more: Any) -> Json:
    usage = {"input_tokens": 10, "output_tokens": 5}
    return {
        "type": "message", "id": "msg_1", "model": "claude-sonnet-4-6", "content": blocks, "stop_reason": stop,
        "usage": usage, **more,
    }  # fmt: skip


def read(events: list[Json], reader: AnthropicReader | None = None) -> Completion:
    """Read the events as the source does, and return the completion."""
    reader, accumulator = reader or AnthropicReader(ORIGIN), Accumulator()
    for event in events:
        for chunk in reader.read(event):
            accumulator.feed(chunk)
    for chunk in reader.finish():
        accumulator.feed(chunk)
    return accumulator.finish()


def plain(message: Json) -> Json:
    """Return the message with parsed arguments, because servers may escape characters."""
    calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return {**message, "tool_calls": calls}


@given(BLOCKS, CALLS, st.integers(1, 9), st.integers(1, 40))
def test_any_answer_makes_the_same_message(blocks: list[Json], inputs: list[Json], piece: int, size: int) -> None:
    """From events in any pieces of text and of bytes, and from a whole answer. Its blocks are sent back unchanged."""
    calls = [{"type": "tool_use", "id": f"toolu_{at}", "name": "f", "input": given} for at, given in enumerate(inputs)]
    answer = whole([*blocks, *calls], "tool_use" if calls else "end_turn")
    at_once = read([json.loads(json.dumps(answer))])
    events = [*events_of(answer, piece)]
    assert plain(read(events).message) == plain(at_once.message)
    data = b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events)
    reader = AnthropicReader(ORIGIN)
    decoder, accumulator = EventDecoder(reader), Accumulator()
    for at in range(0, len(data), size):
        for chunk in decoder.feed(data[at : at + size]):
            accumulator.feed(chunk)
    for chunk in (*decoder.end(), *reader.finish()):
        accumulator.feed(chunk)
    completion = accumulator.finish()
    assert plain(completion.message) == plain(at_once.message)
    assert completion.usage == at_once.usage
    assert completion.finish_reason == ("tool_calls" if calls else "stop")
    made = message_of(answer["content"], ORIGIN)
    kept = {key: value for key, value in completion.message.items() if value}
    assert plain(kept) == plain(made)
    if "anthropic_output" in kept:
        assert kept["anthropic_output"] == answer["content"]


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("a_reason_of_the_future", "a_reason_of_the_future"),
    ],
)
def test_stop_reasons(stop: str, reason: str) -> None:
    """They become the finish reasons of Chat Completions; an unknown one stays."""
    assert read([*events_of(whole([{"type": "text", "text": "Hi"}], stop))]).finish_reason == reason


@pytest.mark.parametrize("details", [{"type": "refusal", "explanation": "No."}, None])
def test_a_refused_answer_is_a_refusal(details: Json | None) -> None:
    """Its text is the explanation of the provider. Its blocks are never sent back."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    made = read([whole([thinking], "refusal", stop_details=details)])
    assert made.finish_reason == "content_filter"
    assert made.message["refusal"] == ("No." if details else "The model refused to answer.")
    assert blocks_to_replay(made.message) is None


def test_a_call_that_was_cut_keeps_its_text() -> None:
    """Arguments that the limit of tokens has cut are not taken for an empty object."""
    answer = whole([{"type": "tool_use", "id": "t", "name": "f", "input": {"city": "Rome"}}], "max_tokens")
    events = [each for each in events_of(answer, 4) if each["type"] != "content_block_stop"]
    del events[6:8]
    made = read(events)
    assert made.message["tool_calls"][0]["function"]["arguments"] == '{"city":'
    assert made.finish_reason == "length"


def test_the_summary_of_a_compaction_and_a_half_input() -> None:
    """A summary arrives in one delta. An input of a tool of the server that was cut is an empty object."""
    pieces: list[Any] = [
        (
            0,
            {"type": "compaction", "content": None},
            {"type": "compaction_delta", "content": "S", "encrypted_content": None},
        ),
        (1, {"type": "server_tool_use", "id": "s", "name": "web"}, {"type": "input_json_delta", "partial_json": '{"q'}),
    ]
    events: list[Json] = []
    for index, block, delta in pieces:
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
    ending = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {}}
    made = read([*events, ending, {"type": "message_stop"}]).message["anthropic_output"]
    assert made == [{"type": "compaction", "content": "S"}, {**pieces[1][1], "input": {}}]


def test_calls_of_code_on_the_server_are_in_the_first_event() -> None:
    """An answer that only continues such code starts with its calls and its stop reason."""
    call = {"type": "tool_use", "id": "t", "name": "roll", "input": {"player": 1}, "caller": {"type": "code"}}
    first = {"type": "message_start", "message": whole([call], "tool_use", container={"id": "container_1"})}
    made = read([first, {"type": "message_stop"}])
    assert made.message["tool_calls"][0]["function"] == {"name": "roll", "arguments": '{"player": 1}'}
    assert made.message["anthropic_origin"] == {**ORIGIN, "container": "container_1"}


def test_a_paused_answer_is_one_message() -> None:
    """The blocks of all parts are in order, and the usage is the sum, with the number of further requests."""
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": []}
    reader, accumulator = AnthropicReader(ORIGIN), Accumulator()
    parts: list[tuple[list[Json], str]] = [
        ([{"type": "text", "text": "I search."}, search], "pause_turn"),
        ([found], "compaction"),
    ]
    for blocks, stop in [*parts, ([{"type": "text", "text": "Found."}], "end_turn")]:
        for event in events_of(whole(blocks, stop, container={"id": "c"})):
            for chunk in reader.read(event):
                accumulator.feed(chunk)
        assert reader.is_paused == (stop != "end_turn")
        assert reader.container == "c"
        if reader.is_paused:
            reader.resume()
    for chunk in reader.finish():
        accumulator.feed(chunk)
    made = accumulator.finish()
    assert made.message["content"] == "I search.\n\nFound."
    assert [each["type"] for each in made.message["anthropic_output"]] == [
        "text", "server_tool_use", "web_search_tool_result", "text",
    ]  # fmt: skip
    assert (made.usage.prompt_tokens, made.usage.completion_tokens, made.usage.requests) == (30, 15, 3)
    assert Completion(made.message, "stop", made.usage).as_chunk()["usage"]["continued_requests"] == 2


def test_the_usage_is_in_the_form_of_chat_completions() -> None:
    """Cache reads and writes are parts of the prompt. The last report of a stream counts. Other models are not in the sums."""
    advice = {"type": "advisor_message", "input_tokens": 100, "output_tokens": 9}
    usage = {
        "input_tokens": 10, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 300, "output_tokens": 50,
        "cache_creation": {"ephemeral_1h_input_tokens": 200, "ephemeral_5m_input_tokens": 100}, "service_tier": "standard",
        "output_tokens_details": {"thinking_tokens": 20}, "iterations": [advice, advice, {"type": "message", "input_tokens": 1}],
    }  # fmt: skip
    made = read([*events_of(whole([{"type": "text", "text": "Hi"}], usage=usage))]).usage
    assert (made.prompt_tokens, made.completion_tokens, made.total_tokens) == (1310, 50, 1360)
    written = {"cached_tokens": 1000, "cache_write_tokens": 300, "cache_write_1h_tokens": 200}
    assert made.details["prompt_tokens_details"] == written
    assert made.details["completion_tokens_details"] == {"reasoning_tokens": 20}
    assert made.details["iterations"] == {"advisor_message": {"input_tokens": 200, "output_tokens": 18}}
    assert read([whole([], usage=None)]).usage == Usage(requests=1)
    odd = {"input_tokens": "10", "output_tokens": 5, "cache_read_input_tokens": [1], "iterations": {"message": 1}}
    assert read([whole([], usage=odd)]).usage.total_tokens == 5


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}, CompletionError, "Busy"),
        ({"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "x"}}, CompletionError, "read"),
        ({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 1}}, CompletionError, "read"),
        ({"type": "message_start", "message": whole([])}, StreamInterrupted, "another answer"),
        ({"message": "who are you"}, StreamInterrupted, "who are you"),
        ({"type": "ping"}, StreamInterrupted, "without a finish_reason"),
        ({"type": "a_type_of_the_future"}, StreamInterrupted, "without a finish_reason"),
    ],
)  # fmt: skip
def test_an_answer_that_breaks_off(event: Json, error: type[CompletionError], words: str) -> None:
    """An event with an error, a malformed one, and a stream that ends without its last event, are errors."""
    started = [*events_of(whole([{"type": "text", "text": "Hello"}]))][:4]
    with pytest.raises(error, match=words) as caught:
        read([*started, event])
    assert caught.value.retryable == (error is StreamInterrupted or "Busy" in words)


def test_a_repeated_start_and_later_events_are_ignored() -> None:
    """A proxy may send the first event twice, and anything after the last event."""
    first, *rest = events_of(whole([{"type": "text", "text": "Hello"}]))
    reader = AnthropicReader(ORIGIN)
    assert read([first, first, *rest], reader).message["content"] == "Hello"
    assert reader.read(first) == ()

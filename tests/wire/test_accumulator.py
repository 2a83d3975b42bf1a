"""The accumulator: usage, errors inside a stream, and its end."""

from __future__ import annotations

import datetime as dt

import pytest

from aswarm import CompletionError, StreamInterrupted, Usage
from aswarm._wire.accumulator import Accumulator, whole_message
from tests.support.wire.accumulated import Json, accumulate, whole
from tests.support.wire.wire_cases import chunk


def test_the_last_usage_that_is_not_null_counts() -> None:
    """Cumulative usage is not added up, and a null at the end does not erase it."""
    parts = [
        chunk({"content": "a"}, usage={"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}),
        chunk(
            {"content": "b"}, "stop", usage={"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "cost": 0.5}
        ),
        {"choices": [], "usage": None, "timings": {"n": 1}},
    ]
    usage = accumulate(parts).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.requests) == (5, 2, 7, 1)
    assert usage.details == {"cost": 0.5}


def test_usage_inside_the_choice_counts() -> None:
    """Moonshot reports usage on the choice."""
    choice = {"index": 0, "delta": {}, "finish_reason": "stop", "usage": {"total_tokens": 3}}
    assert accumulate([{"choices": [choice]}]).usage.total_tokens == 3


def test_no_usage_is_unknown() -> None:
    """Where no usage came the counts are 0 and one request is counted."""
    usage = accumulate([chunk({"content": "a"}, "stop")]).usage
    assert (usage.total_tokens, usage.requests, usage.details) == (0, 1, {})


@pytest.mark.parametrize("usage", ["x", [1], 7, {"total_tokens": "many"}, {"total_tokens": [1], "x": None}])
def test_usage_that_is_none_is_unknown(usage: object) -> None:
    """Usage that is no usage is unknown, and no error."""
    assert accumulate([chunk({"content": "a"}, "stop", usage=usage)]).usage == Usage(requests=1)


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
    """A provider's own number (Zhipu's 1301 is a refused content) says nothing about trying again."""
    with pytest.raises(CompletionError) as caught:
        Accumulator().feed({"error": {"message": "sensitive content", "code": "1301"}})
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("failing", "text"),
    [
        ({"choices": [{"index": 0, "error": {"message": "cut off"}, "finish_reason": "error"}]}, "cut off$"),
        (chunk({"content": ""}, "error", error={"message": "cut off", "code": 502}), "cut off"),
        (chunk({}, "error"), "^the provider ended the completion with finish_reason 'error'$"),
    ],
)
def test_an_error_beside_or_instead_of_a_choice(failing: Json, text: str) -> None:
    """OpenRouter's errors: in the choice, beside the choices, or only as finish reason; the text so far stays."""
    accumulator = Accumulator()
    accumulator.feed(chunk({"content": "Hel"}))
    with pytest.raises(CompletionError, match=text):
        accumulator.feed(failing)
    assert accumulator.text == "Hel"


def test_no_finish_reason_is_an_interruption() -> None:
    """A completion that has begun and has no finish reason is StreamInterrupted, and its text is kept."""
    accumulator = Accumulator()
    accumulator.feed(chunk({"content": "Hel"}))
    with pytest.raises(StreamInterrupted, match=r"^the stream ended without a finish_reason$"):
        accumulator.finish()
    assert accumulator.text == "Hel"


def test_an_answer_of_another_kind_is_quoted() -> None:
    """Of chunks that no completion has, the first one says most; it is quoted."""
    accumulator = Accumulator()
    for odd in ("first", "second"):
        accumulator.feed({"detail": odd})
    with pytest.raises(StreamInterrupted, match=r"^the answer does not contain a completion: \{'detail': 'first'\}$"):
        accumulator.finish()


@pytest.mark.parametrize("chunks", [[], [{"choices": []}]])
def test_nothing_at_all_is_an_interruption(chunks: list[Json]) -> None:
    """An answer with no completion in it is StreamInterrupted and says so."""
    accumulator = Accumulator()
    for item in chunks:
        accumulator.feed(item)
    with pytest.raises(StreamInterrupted, match=r"^the answer was empty: no completion and no error \(.+\)$"):
        accumulator.finish()


def test_a_finish_reason_is_kept_from_being_erased() -> None:
    """A null finish reason after the real one (Azure's late chunks) does not take it back."""
    assert (
        accumulate([chunk({"content": "a"}), chunk({}, "length"), chunk({"content": None}, None)]).finish_reason
        == "length"
    )


def test_a_whole_message_needs_no_finish_reason() -> None:
    """A whole completion is whole: a mock or a server that leaves the finish reason out has still answered."""
    assert accumulate([whole({"role": "assistant", "content": "Hi"}, None)]).message["content"] == "Hi"


def test_a_chunk_of_another_shape_is_quoted() -> None:
    """What cannot be a chunk is a CompletionError that quotes it."""
    with pytest.raises(
        CompletionError, match=r"^the provider sent something that is not a completion: \{'choices': 7\}$"
    ):
        Accumulator().feed({"choices": 7})


@pytest.mark.parametrize("index", [{}, {"index": None}, {"index": 0}])
def test_a_chunk_with_one_choice_that_has_a_message_is_a_whole_completion(index: Json) -> None:
    """The position of the choice may be left out, as some servers do."""
    message = {"role": "assistant", "content": "Hi"}
    assert whole_message({"error": None, "choices": [{"message": message, "error": None, **index}]}) is message


HI: Json = {"message": {"content": "Hi"}}


@pytest.mark.parametrize(
    "chunk",
    [
        "text",
        None,
        {},
        {"choices": None},
        {"choices": []},
        {"choices": "x"},
        {"choices": [None]},
        {"choices": [HI, HI]},
        {"choices": [HI], "error": {"message": "no"}},
        {"choices": [{**HI, "error": {"message": "no"}}]},
        {"choices": [{**HI, "index": 1}]},
        {"choices": [{"delta": {"content": "Hi"}}]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": {}}]},
        {"choices": [{"message": "Hi"}]},
    ],
)
def test_any_other_chunk_is_not_a_whole_completion(chunk: object) -> None:
    """A piece, an error, several choices, or a value of another shape is not one, and is not an error here."""
    assert whole_message(chunk) is None

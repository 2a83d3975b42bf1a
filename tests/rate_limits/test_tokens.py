"""The estimate of a request's tokens: from its size, from earlier answers, and at most `max_tokens`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import File, Image, Usage
from aswarm._rate_limits.tokens import TokenEstimate, latest_report, size_of, usage_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_the_first_estimate() -> None:
    """A token for four bytes, and a long answer: 4000, or half of the limit of a minute."""
    assert TokenEstimate().of({}, 4000) == 5000
    assert TokenEstimate(6000).of({}, 4000) == 4000


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_an_answer_counts_at_most_for_max_tokens(key: str) -> None:
    """`max_tokens` caps the estimate of the answer; a large one does not raise it; a value that is no number is ignored."""
    estimate = TokenEstimate()
    assert estimate.of({key: 10}, 400) == 110
    assert estimate.of({key: 100_000}, 400) == 4100
    assert estimate.of({key: object()}, 400) == 4100


def test_a_request_counts_for_at_least_one_token() -> None:
    """Otherwise the limit would never stop the smallest requests."""
    assert TokenEstimate().of({"max_tokens": 1}, 0) == 1


@given(per_byte=st.floats(0.05, 3), answer=st.integers(1, 5000), size=st.integers(100, 100_000))
def test_the_estimate_learns_what_requests_use(per_byte: float, answer: int, size: int) -> None:
    """After many answers of one kind, the estimate is the usage of such a request."""
    estimate, prompt = TokenEstimate(), max(1, round(per_byte * size))
    for _ in range(150):
        estimate.learn(size, Usage(prompt_tokens=prompt, completion_tokens=answer))
    assert estimate.of({}, size) == pytest.approx(prompt + answer, rel=0.02, abs=2)


def test_the_first_answers_weigh_more() -> None:
    """One short answer does not make all others count as short, and the first estimate soon loses its weight."""
    estimate, learned = TokenEstimate(), []
    for _ in range(9):
        estimate.learn(100, Usage(completion_tokens=1000))
        learned.append(estimate.of({}, 0))
    assert learned[:3] == [2500, 2000, 1750]
    assert learned[-1] == 1300


def test_an_answer_has_the_usual_length_if_the_provider_never_counts() -> None:
    """A count of 0 does not mean that requests are free; but not every answer counts as a long one for ever."""
    estimate = TokenEstimate()
    for _ in range(100):
        estimate.learn(1000, Usage())
    assert estimate.of({}, 4000) == pytest.approx(1250, abs=1)


def test_an_answer_without_a_count_changes_nothing_if_others_have_one() -> None:
    """A stream that was left is no evidence about the length of answers."""
    estimate = TokenEstimate()
    estimate.learn(1000, Usage(completion_tokens=1000))
    estimate.learn(1000, Usage())
    assert estimate.of({}, 0) == 2500


@given(JSON)
def test_every_message_has_a_size(content: Any) -> None:
    """Any content has a size, and longer content has a larger one."""
    small = size_of({"messages": [{"role": "user", "content": content}]})
    assert 0 < small < size_of({"messages": [{"role": "user", "content": [content, "more"]}], "tools": [{"type": "x"}]})


def test_text_counts_in_bytes() -> None:
    """A character of more bytes takes more tokens too; half a character is no reason to fail."""
    sizes = [size_of({"messages": [{"content": text * 100}]}) for text in ("a", "é", "水")]
    assert sizes[0] + 100 == sizes[1] == sizes[2] - 100
    assert size_of({"messages": [{"content": "\ud800"}]}) > 0


def message_size(*parts: Any, **more: Any) -> int:
    return size_of({"messages": [{"role": "user", "content": list(parts) or "Hi", **more}]})


@pytest.mark.parametrize("length", [10, 1_000_000])
@pytest.mark.parametrize("detail", ["low", "high"])
def test_an_image_counts_as_a_thousand_tokens(length: int, detail: Any) -> None:
    """Whatever the length of its base64, in the forms of both APIs; the text beside it counts as before."""
    text, image = {"type": "text", "text": "What is this?"}, Image(b"x" * length, detail=detail).part
    assert message_size(text, image) == message_size(text) + 4000
    responses_form = {"type": "input_image", "image_url": image["image_url"]["url"]}
    assert message_size(responses_form) == message_size(image)


def test_a_file_counts_for_less_than_its_base64() -> None:
    """Its pages are images and texts, and the base64 shows little of them."""
    small, large = (message_size(File(b"x" * length, name="a.pdf").part) for length in (60_000, 600_000))
    assert 5_000 < small < 10_000
    assert 50_000 < large < 100_000


def test_output_items_do_not_count() -> None:
    """Their message has the same text, or they are encrypted."""
    items = [{"type": "reasoning", "summary": [], "encrypted_content": "x" * 100_000}]
    assert message_size(responses_output=items) == message_size()
    assert message_size({"type": "text", "text": "Hi"}, responses_output=items) == message_size(
        {"type": "text", "text": "Hi"}
    )


@pytest.mark.parametrize(
    ("reported", "tokens"),
    [
        ({"total_tokens": 12, "prompt_tokens": 9, "completion_tokens": 3}, 12),
        ({"prompt_tokens": 9, "completion_tokens": 3}, 12),
        (SimpleNamespace(total_tokens=12), 0),
        ("12", 0),
        (None, 0),
    ],
)
def test_the_count_of_the_provider(reported: object, tokens: int) -> None:
    """The total, or the sum of its parts; 0 if neither can be read."""
    assert usage_of(reported).total_tokens == tokens


def test_a_later_report_of_a_stream_erases_nothing() -> None:
    """Zeros, nulls, missing fields and a report that is no object leave the counts as they were."""
    reported: object = None
    for each in ({"prompt_tokens": 7, "completion_tokens": 1}, {"completion_tokens": 2}, {"prompt_tokens": 0}):
        reported = latest_report(reported, each)
    assert usage_of(reported).total_tokens == 9
    assert usage_of(latest_report(reported, "odd")) == usage_of(None)

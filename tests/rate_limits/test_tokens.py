"""The estimate of a request's tokens: from its size, from the answers before, within what it allows itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Usage
from aswarm._rate_limits.tokens import TokenEstimate, size_of, usage_of, used_tokens

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_before_anything_is_known() -> None:
    """A token for four bytes, and a long answer: 4000, or half of what there is in a minute."""
    assert TokenEstimate().of({}, 4000) == 5000
    assert TokenEstimate(6000).of({}, 4000) == 4000


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_an_answer_is_no_longer_than_it_may_be(key: str) -> None:
    """`max_tokens` caps the estimate of the answer; a generous one does not raise it; what is no number is not read."""
    estimate = TokenEstimate()
    assert estimate.of({key: 10}, 400) == 110
    assert estimate.of({key: 100_000}, 400) == 4100
    assert estimate.of({key: object()}, 400) == 4100


def test_a_request_is_never_for_nothing() -> None:
    """At least one token, so that even the smallest requests cannot pass without end."""
    assert TokenEstimate().of({"max_tokens": 1}, 0) == 1


@given(per_byte=st.floats(0.05, 3), answer=st.integers(1, 5000), size=st.integers(100, 100_000))
def test_it_learns_what_requests_use(per_byte: float, answer: int, size: int) -> None:
    """After many answers of one kind, the estimate is what such a request uses."""
    estimate, prompt = TokenEstimate(), max(1, round(per_byte * size))
    for _ in range(150):
        estimate.learn(size, Usage(prompt_tokens=prompt, completion_tokens=answer))
    assert estimate.of({}, size) == pytest.approx(prompt + answer, rel=0.02, abs=2)


def test_the_first_answers_weigh_more() -> None:
    """Neither does one short answer make all others count as short, nor do the first twenty wait for the long one."""
    estimate, learned = TokenEstimate(), []
    for _ in range(9):
        estimate.learn(100, Usage(completion_tokens=1000))
        learned.append(estimate.of({}, 0))
    assert learned[:3] == [2500, 2000, 1750]
    assert learned[-1] == 1300


def test_where_nothing_is_ever_counted_an_answer_is_of_usual_length() -> None:
    """A provider that reports 0 has not said that requests are free; nor shall each count as a long one for ever."""
    estimate = TokenEstimate()
    for _ in range(100):
        estimate.learn(1000, Usage())
    assert estimate.of({}, 4000) == pytest.approx(1250, abs=1)


def test_one_answer_without_a_count_teaches_nothing_where_others_have_one() -> None:
    """A stream that was left says nothing about how long answers are."""
    estimate = TokenEstimate()
    estimate.learn(1000, Usage(completion_tokens=1000))
    estimate.learn(1000, Usage())
    assert estimate.of({}, 0) == 2500


@given(JSON)
def test_anything_that_can_be_a_message_has_a_size(content: Any) -> None:
    """Whatever is in the messages, and longer content is larger."""
    small = size_of({"messages": [{"role": "user", "content": content}]})
    assert 0 < small < size_of({"messages": [{"role": "user", "content": [content, "more"]}], "tools": [{"type": "x"}]})


def test_text_counts_in_bytes() -> None:
    """Text that takes more bytes for a character takes more tokens for it too; half a character is no reason to fail."""
    sizes = [size_of({"messages": [{"content": text * 100}]}) for text in ("a", "é", "水")]
    assert sizes[0] + 100 == sizes[1] == sizes[2] - 100
    assert size_of({"messages": [{"content": "\ud800"}]}) > 0


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
def test_what_the_provider_counted(reported: object, tokens: int) -> None:
    """The total, or its parts; 0 for what nobody can read."""
    assert used_tokens(usage_of(reported)) == tokens

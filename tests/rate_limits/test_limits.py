"""What may be a limit, and how the number of runs that are held open is found out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import ConfigurationError, RateLimits
from aswarm._rate_limits.adaptive import AdaptiveLimit


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "60"])
@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute"])
def test_limits_are_whole_numbers_from_one(name: str, wrong: Any) -> None:
    """Anything else is the caller's mistake; the message names the field."""
    with pytest.raises(ConfigurationError, match=name):
        RateLimits(**{name: wrong})


def test_the_adaptive_limit_doubles_until_the_first_pause() -> None:
    """One more for each answer, as far as the ceiling."""
    limit = AdaptiveLimit(2, 9)
    for _ in range(5):
        limit.answered()
    assert limit.limit == 7
    for _ in range(5):
        limit.answered()
    assert limit.limit == 9


def test_the_adaptive_limit_halves_at_a_pause_and_then_adds_one_for_each_round() -> None:
    """Additive increase, multiplicative decrease."""
    limit, seen = AdaptiveLimit(16), []
    limit.paused(1.0)
    for _ in range(3):
        seen.append(limit.limit)
        for _ in range(limit.limit + 1):
            limit.answered()
    assert seen == [8, 9, 10]


def test_the_adaptive_limit_falls_by_a_quarter_at_overload_once_for_a_round() -> None:
    """What was on its way when it fell says nothing about what it is now; after that it grows slowly."""
    limit, seen = AdaptiveLimit(16), []
    for _ in range(33):
        limit.overloaded()
        seen.append(limit.limit)
    assert seen == [12] * 16 + [9] * 12 + [6] * 5
    for _ in range(7):
        limit.answered()
    assert limit.limit == 7
    limit.overloaded()
    assert limit.limit == 5


def test_the_adaptive_limit_grows_only_while_half_of_it_is_used() -> None:
    """And says so whenever there may be one more."""
    limit, said = AdaptiveLimit(10, 30), []
    running = 10
    limit.watch(lambda: running, lambda: said.append(limit.limit))
    for _ in range(50):
        limit.answered()
    assert limit.limit == 21
    assert said == list(range(11, 22))
    limit.paused(1.0)
    running = 4
    for _ in range(50):
        limit.answered()
    assert limit.limit == 10
    running = 0
    limit.overloaded()
    limit.overloaded()
    assert limit.limit == 5, "a round of nobody is over"


@given(st.integers(1, 50), st.integers(1, 50), st.lists(st.booleans(), max_size=60))
def test_the_adaptive_limit_stays_between_one_and_its_ceiling(start: int, ceiling: int, news: list[bool]) -> None:
    """Whatever happens, something may run, and never more than the ceiling."""
    limit = AdaptiveLimit(start, ceiling)
    for is_good in news:
        if is_good:
            limit.answered()
        else:
            limit.paused(1.0)
        assert 1 <= limit.limit <= ceiling

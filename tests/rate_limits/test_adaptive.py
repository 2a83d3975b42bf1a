"""How the number of runs that a batch holds open follows the results of requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aswarm._rate_limits.adaptive import AdaptiveLimit


def test_the_adaptive_limit_doubles_until_the_first_pause() -> None:
    """It grows by one for each answer, as far as the ceiling."""
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
    limit.paused()
    for _ in range(3):
        seen.append(limit.limit)
        for _ in range(limit.limit + 1):
            limit.answered()
    assert seen == [8, 9, 10]


def test_the_adaptive_limit_comes_back_when_a_pause_ends_early() -> None:
    """As high as before the pause, or as it has grown since; and it grows as fast. Nothing is restored after an overload."""
    limit, said = AdaptiveLimit(16), list[int]()
    limit.watch(lambda: limit.limit, lambda: said.append(limit.limit))
    limit.resumed()
    assert said == []
    limit.paused()
    limit.resumed()
    limit.answered()
    assert said == [16, 17]
    limit.paused()
    limit.overloaded()
    for _ in range(20):
        limit.overloaded()
    before = limit.limit
    limit.resumed()
    assert limit.limit == before < 8


def test_the_adaptive_limit_falls_by_a_quarter_at_overload_once_for_a_round() -> None:
    """Requests in flight at the cut say nothing about the new limit; after that it grows slowly."""
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
    """It says so each time that one more run may begin."""
    limit, said = AdaptiveLimit(10, 30), []
    running = 10
    limit.watch(lambda: running, lambda: said.append(limit.limit))
    for _ in range(50):
        limit.answered()
    assert limit.limit == 21
    assert said == list(range(11, 22))
    limit.paused()
    running = 4
    for _ in range(50):
        limit.answered()
    assert limit.limit == 10
    running = 0
    limit.overloaded()
    limit.overloaded()
    assert limit.limit == 5, "a round without requests is over"


@given(st.integers(1, 50), st.integers(1, 50), st.lists(st.booleans(), max_size=60))
def test_the_adaptive_limit_stays_between_one_and_its_ceiling(start: int, ceiling: int, news: list[bool]) -> None:
    """Whatever happens, at least one run may be open, and never more than the ceiling."""
    limit = AdaptiveLimit(start, ceiling)
    for is_good in news:
        if is_good:
            limit.answered()
        else:
            limit.paused()
        assert 1 <= limit.limit <= ceiling

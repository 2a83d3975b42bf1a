"""The limits of a minute, the queue of requests, and the adaptive concurrency, without a clock or a network."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import ConfigurationError, RateLimits
from aswarm._rate_limits.adaptive import AdaptiveLimit
from aswarm._rate_limits.policy import Admission, RatePolicy
from aswarm._rate_limits.rate_limiter import WaitQueue

MINUTE = 60.0
LIMITS = st.builds(
    RateLimits,
    requests_per_minute=st.none() | st.integers(1, 5) | st.integers(110, 400),
    tokens_per_minute=st.none() | st.integers(1, 100),
)
REQUESTS = st.lists(st.tuples(st.floats(0, 40), st.integers(1, 120)), max_size=25)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "60"])
@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute"])
def test_limits_are_whole_numbers_from_one(name: str, wrong: Any) -> None:
    """Anything else is the caller's mistake; the message names the field."""
    with pytest.raises(ConfigurationError, match=name):
        RateLimits(**{name: wrong})


def policy_of(requests: int | None = None, tokens: int | None = None, jitter: float = 0.0) -> RatePolicy:
    return RatePolicy(RateLimits(requests_per_minute=requests, tokens_per_minute=tokens), MINUTE, lambda: jitter)


def go_when_allowed(policy: RatePolicy, tokens: int, now: float) -> Admission:
    """Wait as often as the policy requires, which must stop at some time."""
    for _ in range(100):
        wait = policy.wait(tokens, now)
        if wait == 0:
            return policy.admit(tokens, now)
        assert 0 < wait < math.inf
        now += wait
    raise AssertionError("it may never go")


def shares_of(limits: RateLimits) -> list[tuple[int, float]]:
    """How many requests may go in how many seconds: in 1, 10 and 60, or in a little more if the share is rounded up."""
    most = limits.requests_per_minute or 0
    shares = [math.ceil(most * seconds / 60) for seconds in (1, 10, 60)] if most else []
    return [(share, MINUTE * share / most) for share in shares]


def first_moment(limits: RateLimits, gone: list[tuple[float, int]], tokens: int, now: float) -> float:
    """The slow model: try every moment at which a request stops to count, in its minute or in its second."""
    shares, much = shares_of(limits), limits.tokens_per_minute or math.inf
    lengths = [MINUTE, *(length for _, length in shares)]
    moments = [now, *(at + length for at, _ in gone for length in lengths if at + length > now)]
    for moment in sorted(moments):
        counting = [used for at, used in gone if at + MINUTE > moment + 1e-6]
        fits = all(sum(at + length > moment + 1e-6 for at, _ in gone) < share for share, length in shares)
        if fits and sum(counting) + min(tokens, much) <= much:
            return moment
    raise AssertionError("the last moment is always free")


@given(LIMITS, REQUESTS)
def test_a_request_goes_at_the_first_moment_that_the_limits_allow(
    limits: RateLimits, requests: list[tuple[float, int]]
) -> None:
    """Never sooner, never later, and never not at all, however large it is."""
    policy, now = RatePolicy(limits, MINUTE, lambda: 0), 0.0
    gone: list[tuple[float, int]] = []
    for gap, tokens in requests:
        now += gap
        expected = first_moment(limits, gone, tokens, now)
        now = go_when_allowed(policy, tokens, now).at
        assert now == pytest.approx(expected, abs=1e-5)
        gone.append((now, tokens))


@given(st.integers(1, 2000), st.lists(st.floats(0, 0.5), max_size=150), st.sampled_from([1, 10, 60]))
def test_no_shorter_window_has_more_than_its_share(most: int, gaps: list[float], seconds: int) -> None:
    """A server that checks so many seconds allows its share of the minute; a share is rounded up."""
    policy, now, gone = RatePolicy(RateLimits(requests_per_minute=most), 61.0, lambda: 0), 0.0, list[float]()
    for gap in gaps:
        now = go_when_allowed(policy, 0, now + gap).at
        gone.append(now)
    allowed = math.ceil(most * seconds / 60)
    for later, at in zip(gone[allowed:], gone, strict=False):
        assert later - at > seconds


@given(st.lists(st.tuples(st.floats(0, 70), st.integers(1, 60)), max_size=8), LIMITS, REQUESTS)
def test_requests_of_an_earlier_process_count_as_its_own(
    earlier: list[tuple[float, int]], limits: RateLimits, requests: list[tuple[float, int]]
) -> None:
    """In any order, also if they are more than the limit: the next ones go when they count no more."""
    policy, now = RatePolicy(limits, MINUTE, lambda: 0), 100.0
    gone = [(now - age, tokens) for age, tokens in earlier]
    policy.count_earlier(gone)
    for gap, tokens in requests:
        now += gap
        expected = first_moment(limits, gone, tokens, now)
        now = go_when_allowed(policy, tokens, now).at
        assert now == pytest.approx(expected, abs=1e-5)
        gone.append((now, tokens))


def test_the_tokens_that_were_used_replace_the_estimate() -> None:
    """Fewer tokens let the next request go at once, more make it wait, and after a minute they do not count."""
    policy = policy_of(tokens=100)
    first = policy.admit(90, 0.0)
    assert policy.wait(50, 1.0) == 59
    policy.correct(first, 20)
    assert policy.wait(50, 1.0) == 0
    policy.correct(first, 300)
    assert policy.wait(50, 1.0) == 59
    assert policy.wait(50, 60.0) == 0
    policy.correct(first, 1000)
    policy.admit(50, 60.0)
    assert policy.wait(50, 60.0) == 0


# --- the queue of one event loop ---
async def test_the_lower_number_is_first_and_of_equal_numbers_the_one_that_came_first() -> None:
    """A request that yields has the number of the last request that goes before it, and is behind it."""
    queue = WaitQueue()
    second, first = queue.join(7), queue.join(3)
    behind = queue.join(queue.number_behind(2))
    assert (behind.number, queue.is_first(first)) == (7, True)
    queue.remove(first)
    assert queue.is_first(second)


@pytest.mark.parametrize("leaving", [0, 1])
async def test_a_request_that_leaves_takes_no_other_with_it(leaving: int) -> None:
    """This holds for equal numbers too: the other request is first then, and is woken."""
    queue = WaitQueue()
    waiting = [queue.join(7), queue.join(7)]
    gone = waiting.pop(leaving)
    assert queue.remove(gone)
    assert queue.is_first(waiting[0])
    assert waiting[0].wake.is_set()
    assert not queue.remove(waiting[0])


# --- the adaptive limit ---


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
    """Requests in flight at the cut are no evidence about the new limit; after that it grows slowly."""
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
    """It reports each time that one more run may start."""
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

"""When the next request may go: on numbers alone, against slow models of the rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import RateLimits
from aswarm._rate_limits.policy import Pace, Place, Refusals

MINUTE = 60.0
LIMITS = st.builds(RateLimits, st.none() | st.integers(1, 5), st.none() | st.integers(1, 100))
REQUESTS = st.lists(st.tuples(st.floats(0, 40), st.integers(1, 120)), max_size=25)


def pace_of(requests: int | None = None, tokens: int | None = None, jitter: float = 0.0) -> Pace:
    return Pace(RateLimits(requests, tokens), MINUTE, lambda: jitter)


def go_when_allowed(pace: Pace, tokens: int, now: float) -> Place:
    """Wait as often as the pace says, which must come to an end."""
    for _ in range(100):
        wait = pace.wait(tokens, now)
        if wait == 0:
            return pace.go(tokens, now)
        assert 0 < wait < math.inf
        now += wait
    raise AssertionError("it may never go")


def first_moment(limits: RateLimits, gone: list[tuple[float, int]], tokens: int, now: float) -> float:
    """The slow model: try every moment at which something stops to count."""
    for moment in sorted([now, *(at + MINUTE for at, _ in gone if at + MINUTE > now)]):
        counting = [used for at, used in gone if at + MINUTE > moment + 1e-6]
        many, much = limits.requests_per_minute or math.inf, limits.tokens_per_minute or math.inf
        if len(counting) < many and sum(counting) + min(tokens, much) <= much:
            return moment
    raise AssertionError("the last moment is always free")


@given(LIMITS, REQUESTS)
def test_a_request_goes_at_the_first_moment_that_the_limits_allow(
    limits: RateLimits, requests: list[tuple[float, int]]
) -> None:
    """Never sooner, never later, and never not at all, however large it is."""
    pace, now = Pace(limits, MINUTE, lambda: 0), 0.0
    gone: list[tuple[float, int]] = []
    for gap, tokens in requests:
        now += gap
        expected = first_moment(limits, gone, tokens, now)
        now = go_when_allowed(pace, tokens, now).at
        assert now == pytest.approx(expected, abs=1e-5)
        gone.append((now, tokens))


@given(st.integers(1, 5), REQUESTS)
def test_no_minute_has_more_requests_than_the_limit(most: int, requests: list[tuple[float, int]]) -> None:
    """Whatever window of a minute is looked at."""
    pace, now, gone = pace_of(most), 0.0, []
    for gap, _ in requests:
        now = go_when_allowed(pace, 0, now + gap).at
        gone.append(now)
    for later, at in zip(gone[most:], gone, strict=False):
        assert later - at >= MINUTE - 1e-5


def test_what_was_really_used_takes_the_place_of_the_estimate() -> None:
    """Less used lets the next one go at once; more used makes it wait; after a minute it is no concern."""
    pace = pace_of(tokens=100)
    first = pace.go(90, 0.0)
    assert pace.wait(50, 1.0) == 59
    pace.used(first, 20)
    assert pace.wait(50, 1.0) == 0
    pace.used(first, 300)
    assert pace.wait(50, 1.0) == 59
    assert pace.wait(50, 60.0) == 0
    pace.used(first, 1000)
    pace.go(50, 60.0)
    assert pace.wait(50, 60.0) == 0


def test_a_refused_request_used_no_tokens_but_was_a_request() -> None:
    """Providers count requests that they refuse; no model has run for them."""
    pace = pace_of(1, 100)
    place = pace.go(100, 0.0)
    pace.used(place, 0)
    pace.refused(place, 1.0, 5.0, Refusals())
    assert pace.wait(100, 6.0) == 54


def test_a_pause_is_for_everybody_and_as_long_as_was_asked() -> None:
    """Nothing goes before it is over, and it is not shortened by a later, shorter one."""
    pace = pace_of()
    first, second, third = (pace.go(0, 0.0) for _ in range(3))
    assert pace.refused(first, 1.0, 20.0, Refusals()) == 20
    assert pace.refused(second, 2.0, 5.0, Refusals()) is None, "it was on its way already: the same event"
    assert pace.wait(0, 2.0) == 19
    assert pace.refused(third, 3.0, 30.0, Refusals()) is None
    assert pace.wait(0, 3.0) == 30
    assert pace.wait(0, 33.0) == 0


@pytest.mark.parametrize("unsaid", [None, 0.0, 1e9])
def test_without_a_time_the_pauses_double(unsaid: float | None) -> None:
    """1, 2, 4... seconds up to a minute, less up to a quarter by chance; an answer in between starts anew."""
    pace, now, pauses = pace_of(jitter=1.0), 0.0, []
    for _ in range(9):
        place = go_when_allowed(pace, 0, now)
        now = place.at
        pauses.append(pace.refused(place, now, unsaid, Refusals()))
    assert pauses == [0.75 * seconds for seconds in (1, 2, 4, 8, 16, 32, 60, 60, 60)]
    old = go_when_allowed(pace, 0, now)
    now = old.at
    assert pace.refused(pace.go(0, now), now, unsaid, Refusals()) == 45
    pace.answered(old)  # it went before the pause, and says nothing about what is now
    newer = go_when_allowed(pace, 0, now)
    assert pace.refused(newer, newer.at, unsaid, Refusals()) == 45
    now = newer.at
    pace.answered(go_when_allowed(pace, 0, now))
    assert pace.refused(go_when_allowed(pace, 0, now + 60), now + 60, unsaid, Refusals()) == 0.75


def test_a_time_that_did_not_help_is_believed_less_and_less() -> None:
    """Refused again right after the wait that was asked for: from then on at least 1, 2, 4... seconds."""
    pace, now, pauses = pace_of(), 0.0, []
    for _ in range(4):
        place = go_when_allowed(pace, 0, now)
        now = place.at
        pauses.append(pace.refused(place, now, 1.5, Refusals()))
    assert pauses == [1.5, 1.5, 2, 4]


def test_after_a_pause_one_goes_first_and_every_answer_lets_one_more_go() -> None:
    """1, 2, 4 at once: slow start, so that a server that is still busy has little to refuse."""
    pace = pace_of()
    sent = [pace.go(0, 0.0) for _ in range(40)]
    pace.refused(sent[0], 0.5, 10.0, Refusals())
    for expected in (1, 2, 4, 8, 16):
        together = []
        while pace.wait(0, 10.5) == 0:
            together.append(pace.go(0, 10.5))
        assert len(together) == expected
        for place in together:
            pace.answered(place)


def test_from_half_of_what_was_too_many_it_grows_slowly_for_a_minute() -> None:
    """When eight after a pause were too many: 1, 2, 4, then one more for each round; after a minute twice as many."""
    pace = pace_of()
    pace.refused(pace.go(0, 0.0), 0.0, 1.0, Refusals())
    assert _rounds(pace, 1.0, 3) == [1, 2, 4]
    refused = [pace.go(0, 1.0) for _ in range(8)]
    pace.refused(refused[3], 1.0, 1.0, Refusals())
    assert _rounds(pace, 2.0, 7) == [1, 2, 4, 4, 5, 6, 7]
    assert _rounds(pace, 62.0, 3) == [8, 16, 32]


def _rounds(pace: Pace, now: float, count: int) -> list[int]:
    """How many go together, when all of each round are answered."""
    rounds = []
    for _ in range(count):
        together = []
        while pace.wait(0, now) == 0:
            together.append(pace.go(0, now))
        rounds.append(len(together))
        for place in together:
            pace.answered(place)
    return rounds


def test_what_is_not_refused_within_two_seconds_counts_as_answered() -> None:
    """Answers take long, refusals do not: nobody waits for a whole answer, or for one that never comes."""
    pace = pace_of()
    pace.refused(pace.go(0, 0.0), 0.0, 10.0, Refusals())
    slow = pace.go(0, 10.0)
    assert pace.wait(0, 10.5) == 1.5
    assert pace.wait(0, 12.0) == 0
    pace.answered(slow)


def test_one_that_is_lost_makes_room_for_another_but_not_for_two() -> None:
    """A cancelled request says nothing about limits."""
    pace = pace_of()
    pace.refused(pace.go(0, 0.0), 0.0, 10.0, Refusals())
    pace.lost(pace.go(0, 10.0))
    pace.go(0, 10.0)
    assert pace.wait(0, 10.0) > 0


def refuse_again(pace: Pace, past: Refusals, now: float, asked: float | None = None) -> tuple[float | None, float]:
    """Send it, and refuse it at once: how long all wait, and how long it waits itself."""
    place = go_when_allowed(pace, 0, now)
    return pace.refused(place, place.at, asked, past), past.wait


def test_a_request_that_is_refused_while_others_are_taken_waits_alone() -> None:
    """The first two times everybody pauses; then it is known whom it is about, and four times of that are enough."""
    pace, past = pace_of(), Refusals()
    assert refuse_again(pace, past, 0.0) == (1, 0)
    assert refuse_again(pace, past, 1.0) == (2, 0)
    pace.answered(go_when_allowed(pace, 0, 3.0))
    assert refuse_again(pace, past, 10.0) == (None, 2)
    assert pace.wait(0, 10.0) == 0, "nobody else waits"
    assert refuse_again(pace, past, 20.0, 7.0) == (None, 7)
    assert refuse_again(pace, past, 30.0) == (None, 8)
    assert not past.are_enough
    assert refuse_again(pace, past, 40.0) == (None, 16)
    assert past.are_enough


def test_a_request_that_is_refused_as_others_are_has_ten_chances() -> None:
    """A provider that is busy refuses the same one more than once: then all wait, as for any other."""
    pace, past, now = pace_of(), Refusals(), 0.0
    for times in range(1, 11):
        assert not past.are_enough
        refuse_again(pace, past, now, 10.0)
        assert past.times == times
        for _ in range(2):
            refuse_again(pace, Refusals(), now + 10, 10.0)
        pace.answered(go_when_allowed(pace, 0, now + 40))
        now += 50
    assert past.are_enough
    assert past.alone == 0


def test_a_few_refusals_of_others_do_not_make_it_everybodys_matter() -> None:
    """Where more are taken than refused it waits alone; but that is no reason to give up early."""
    pace, past = pace_of(), Refusals()
    for now in (0.0, 10.0):
        refuse_again(pace, past, now)
    refuse_again(pace, Refusals(), 20.0)
    for now in (30.0, 31.0):
        pace.answered(go_when_allowed(pace, 0, now))
    assert refuse_again(pace, past, 40.0) == (None, 2)
    assert past.alone == 0


def test_a_refusal_that_took_long_is_no_sign_that_somebody_was_taken() -> None:
    """After two seconds it had counted as one that is not refused."""
    pace, past, now = pace_of(), Refusals(), 0.0
    for seconds in (1, 2, 4):
        place = go_when_allowed(pace, 0, now)
        now = place.at + 3
        assert pace.wait(0, now) == 0
        assert pace.refused(place, now, None, past) == seconds
    assert past.alone == 0


@given(st.data(), LIMITS)
def test_whatever_happens_no_pause_is_broken_and_everything_goes_in_the_end(data: Any, limits: RateLimits) -> None:
    """Nothing goes before the end of any pause that was asked for, and waiting always helps."""
    pace, now, paused_until = Pace(limits, MINUTE, lambda: 0.5), 0.0, 0.0
    open_places: list[Place] = []
    for _ in range(data.draw(st.integers(0, 40))):
        now += data.draw(st.floats(0, 3))
        event = data.draw(st.sampled_from(["go", "answer", "refuse", "lose"]))
        if event == "go" or not open_places:
            place = go_when_allowed(pace, data.draw(st.integers(1, 120)), now)
            assert place.at >= paused_until - 1e-5
            now = place.at
            open_places.append(place)
            continue
        place = open_places.pop(data.draw(st.integers(0, len(open_places) - 1)))
        if event == "refuse":
            seconds = data.draw(st.none() | st.floats(0, 30))
            pace.refused(place, now, seconds, Refusals())
            paused_until = max(paused_until, now + (seconds or 0))
        else:
            (pace.answered if event == "answer" else pace.lost)(place)
    go_when_allowed(pace, 1, now)

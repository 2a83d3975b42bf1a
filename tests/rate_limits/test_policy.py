"""What may be a limit, and when the next request may go: on numbers alone, against slow models of the rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import ConfigurationError, RateLimits
from aswarm._rate_limits.policy import Admission, RatePolicy, Rejections

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
    """Wait as often as the policy says, which must come to an end."""
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


@given(st.integers(1, 5), REQUESTS)
def test_no_minute_has_more_requests_than_the_limit(most: int, requests: list[tuple[float, int]]) -> None:
    """Whatever window of a minute is looked at."""
    policy, now, gone = policy_of(most), 0.0, []
    for gap, _ in requests:
        now = go_when_allowed(policy, 0, now + gap).at
        gone.append(now)
    for later, at in zip(gone[most:], gone, strict=False):
        assert later - at >= MINUTE - 1e-5


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


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (600, [0.0] * 10 + [1.0] * 10 + [2.0] * 10),
        (75, [0.0] * 2 + [1.6] * 2 + [3.2] * 2 + [4.8] * 2 + [6.4] * 2 + [8.0] * 2 + [9.6, 10.4, 11.2, 12.0]),
        (60, [0.0, 1.0, 2.0, 3.0]),
        (6, [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]),
    ],
)
def test_requests_that_all_wait_go_in_shares_of_a_second(most: int, expected: list[float]) -> None:
    """A sixtieth of the minute at once, then as many a second later; the minute itself loses nothing."""
    policy, now, gone = policy_of(most), 0.0, []
    for _ in expected:
        now = go_when_allowed(policy, 0, now).at
        gone.append(now)
    assert gone == pytest.approx(expected)


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


def test_a_request_waits_until_enough_of_the_oldest_tokens_count_no_more() -> None:
    """It waits for the end of one earlier request, or of two, and not for all of them."""
    policy = policy_of(tokens=100)
    for now in (0.0, 10.0, 20.0):
        policy.admit(30, now)
    assert [policy.wait(tokens, 20.0) for tokens in (10, 40, 41, 70, 71)] == [0, 40, 50, 50, 60]


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


def test_a_rejected_request_counts_as_a_request_but_not_its_tokens() -> None:
    """Providers count requests that they reject; no model has run for them."""
    policy = policy_of(1, 100)
    admission = policy.admit(100, 0.0)
    policy.correct(admission, 0)
    policy.rejected(admission, 1.0, 5.0, Rejections())
    assert policy.wait(100, 6.0) == 54


def test_a_pause_is_for_all_requests_and_as_long_as_the_server_asked() -> None:
    """No request goes before it is over, and a later, shorter one does not shorten it."""
    policy = policy_of()
    first, second, third = (policy.admit(0, 0.0) for _ in range(3))
    assert policy.rejected(first, 1.0, 20.0, Rejections()) == 20
    assert policy.rejected(second, 2.0, 5.0, Rejections()) is None, "it was in flight already: no new pause"
    assert policy.wait(0, 2.0) == 19
    assert policy.rejected(third, 3.0, 30.0, Rejections()) is None
    assert policy.wait(0, 3.0) == 30
    assert policy.wait(0, 33.0) == 0


def test_rejections_of_requests_that_were_in_flight_together_are_one_pause() -> None:
    """They do not lengthen the pause, and the next pause is the second one."""
    policy = policy_of()
    together = [policy.admit(0, 0.0) for _ in range(3)]
    pauses = [policy.rejected(admission, 0.0, None, Rejections()) for admission in together]
    assert pauses == [1, None, None]
    assert policy.wait(0, 0.0) == 1
    assert policy.rejected(policy.admit(0, 1.0), 1.0, None, Rejections()) == 2


def test_a_wait_that_no_clock_can_measure_is_over() -> None:
    """A request that comes to the end of a pause goes, even if its clock is a little early."""
    policy = policy_of()
    policy.rejected(policy.admit(0, 0.0), 0.0, 10.0, Rejections())
    assert policy.wait(0, 10 - 1e-7) == 0


@pytest.mark.parametrize("unsaid", [None, 0.0, 1e9])
def test_pauses_of_unknown_length_double(unsaid: float | None) -> None:
    """1, 2, 4... seconds up to a minute, less up to a quarter by chance; an answer in between starts again from 1."""
    policy, now, pauses = policy_of(jitter=1.0), 0.0, []
    for _ in range(9):
        admission = go_when_allowed(policy, 0, now)
        now = admission.at
        pauses.append(policy.rejected(admission, now, unsaid, Rejections()))
    assert pauses == [0.75 * seconds for seconds in (1, 2, 4, 8, 16, 32, 60, 60, 60)]
    old = go_when_allowed(policy, 0, now)
    now = old.at
    assert policy.rejected(policy.admit(0, now), now, unsaid, Rejections()) == 45
    policy.answered(old)  # it went before the pause, and says nothing about the time after it
    newer = go_when_allowed(policy, 0, now)
    assert policy.rejected(newer, newer.at, unsaid, Rejections()) == 45
    now = newer.at
    policy.answered(go_when_allowed(policy, 0, now))
    assert policy.rejected(go_when_allowed(policy, 0, now + 60), now + 60, unsaid, Rejections()) == 0.75


def test_a_short_retry_after_is_believed_at_first() -> None:
    """A server may ask for less than the first pause of unknown length."""
    policy = policy_of()
    assert policy.rejected(policy.admit(0, 0.0), 0.0, 0.1, Rejections()) == 0.1


def test_a_retry_after_that_did_not_help_is_believed_less_and_less() -> None:
    """Rejected again right after the wait that the server asked for: from then on at least 1, 2, 4... seconds."""
    policy, now, pauses = policy_of(), 0.0, []
    for _ in range(4):
        admission = go_when_allowed(policy, 0, now)
        now = admission.at
        pauses.append(policy.rejected(admission, now, 1.5, Rejections()))
    assert pauses == [1.5, 1.5, 2, 4]


def test_after_a_pause_one_goes_first_and_every_answer_lets_one_more_go() -> None:
    """1, 2, 4 at once: slow start, so that a server that is still busy has little to reject."""
    policy = policy_of()
    sent = [policy.admit(0, 0.0) for _ in range(40)]
    policy.rejected(sent[0], 0.5, 10.0, Rejections())
    for expected in (1, 2, 4, 8, 16):
        together = []
        while policy.wait(0, 10.5) == 0:
            together.append(policy.admit(0, 10.5))
        assert len(together) == expected
        for admission in together:
            policy.answered(admission)


def test_from_half_of_what_was_too_many_it_grows_slowly_for_a_minute() -> None:
    """When eight after a pause were too many: 1, 2, 4, then one more for each round; after a minute twice as many."""
    policy = policy_of()
    policy.rejected(policy.admit(0, 1000.0), 1000.0, 1.0, Rejections())
    assert _rounds(policy, 1001.0, 3) == [1, 2, 4]
    rejected = [policy.admit(0, 1001.0) for _ in range(8)]
    policy.rejected(rejected[3], 1001.0, 1.0, Rejections())
    assert _rounds(policy, 1002.0, 7) == [1, 2, 4, 4, 5, 6, 7]
    assert _rounds(policy, 1062.0, 3) == [8, 16, 32]


def test_a_rejection_of_the_first_request_after_a_pause_says_nothing_about_how_many_may_go() -> None:
    """The server was busy for longer than it had said; after that as many go as after the first pause."""
    policy = policy_of()
    for now in (0.0, 1.0):
        policy.rejected(policy.admit(0, now), now, 1.0, Rejections())
    assert _rounds(policy, 10.0, 3) == [1, 2, 4]


def test_if_two_at_once_were_too_many_it_grows_slowly_from_the_start() -> None:
    """Half of two is one: from there one more for each round, or for two of them."""
    policy = policy_of()
    policy.rejected(policy.admit(0, 0.0), 0.0, 1.0, Rejections())
    policy.answered(policy.admit(0, 1.0))
    policy.rejected([policy.admit(0, 1.0), policy.admit(0, 1.0)][0], 1.0, 1.0, Rejections())
    assert _rounds(policy, 10.0, 5) == [1, 2, 2, 3, 4]


def _rounds(policy: RatePolicy, now: float, count: int) -> list[int]:
    """How many go together, when all of each round are answered."""
    rounds = []
    for _ in range(count):
        together = []
        while policy.wait(0, now) == 0:
            together.append(policy.admit(0, now))
        rounds.append(len(together))
        for admission in together:
            policy.answered(admission)
    return rounds


def test_a_request_that_is_not_rejected_within_two_seconds_counts_as_accepted() -> None:
    """Answers take long, rejections do not: no request waits for a whole answer, or for one that never comes."""
    policy = policy_of()
    policy.rejected(policy.admit(0, 0.0), 0.0, 10.0, Rejections())
    slow = policy.admit(0, 10.0)
    assert policy.wait(0, 10.5) == 1.5
    assert policy.wait(0, 12.0) == 0
    policy.answered(slow)


def test_a_request_that_ends_without_a_result_makes_room_for_one_other() -> None:
    """A cancelled request says nothing about limits."""
    policy = policy_of()
    policy.rejected(policy.admit(0, 0.0), 0.0, 10.0, Rejections())
    policy.finished(policy.admit(0, 10.0))
    policy.admit(0, 10.0)
    assert policy.wait(0, 10.0) > 0


def reject_again(
    policy: RatePolicy, past: Rejections, now: float, asked: float | None = None
) -> tuple[float | None, float]:
    """Send it, and reject it at once: how long all wait, and how long it waits itself."""
    admission = go_when_allowed(policy, 0, now)
    return policy.rejected(admission, admission.at, asked, past), past.wait


def test_a_request_that_is_rejected_while_others_are_accepted_waits_alone() -> None:
    """The first two times all requests pause; then only this one waits, and after four such rejections it fails."""
    policy, past = policy_of(), Rejections()
    assert reject_again(policy, past, 0.0) == (1, 0)
    assert reject_again(policy, past, 1.0) == (2, 0)
    policy.answered(go_when_allowed(policy, 0, 3.0))
    assert reject_again(policy, past, 10.0) == (None, 2)
    assert policy.wait(0, 10.0) == 0, "no other request waits"
    assert reject_again(policy, past, 20.0, 7.0) == (None, 7)
    assert reject_again(policy, past, 30.0) == (None, 8)
    assert not past.are_enough
    assert reject_again(policy, past, 40.0) == (None, 16)
    assert past.are_enough


def test_a_request_that_is_rejected_as_others_are_has_ten_chances() -> None:
    """A busy provider rejects the same request more than once: then all wait, as for any other."""
    policy, past, now = policy_of(), Rejections(), 0.0
    for times in range(1, 11):
        assert not past.are_enough
        reject_again(policy, past, now, 10.0)
        assert past.times == times
        for _ in range(2):
            reject_again(policy, Rejections(), now + 10, 10.0)
        policy.answered(go_when_allowed(policy, 0, now + 40))
        now += 50
    assert past.are_enough
    assert past.alone == 0


def test_a_request_that_is_rejected_with_one_other_waits_with_all() -> None:
    """Since its last rejection another request was rejected and none accepted: the provider is busy."""
    policy, past = policy_of(), Rejections()
    for now in (0.0, 10.0):
        reject_again(policy, past, now)
    reject_again(policy, Rejections(), 20.0)
    assert reject_again(policy, past, 30.0) == (8, 0)


@pytest.mark.parametrize(
    ("counts", "verdicts"),
    [
        ([(0, 0), (5, 0)], [False, False]),  # until then it went first
        ([(2, 0), (2, 0), (2, 0)], [False, False, False]),  # no other request went
        ([(0, 0), (0, 0), (1, 0), (1, 0), (1, 0)], [False, False, True, True, True]),  # what was known stays true
        ([(0, 0), (0, 0), (1, 1)], [False, False, False]),  # as many rejected as accepted
        ([(0, 0), (0, 0), (2, 1), (2, 1)], [False, False, True, False]),  # more accepted than rejected
    ],
)
def test_when_a_rejection_is_about_one_request_alone(counts: list[tuple[int, int]], verdicts: list[bool]) -> None:
    """From the third one on: if other requests were accepted since the last one, and fewer or none rejected."""
    past = Rejections()
    assert [past.add(accepted, rejected) for accepted, rejected in counts] == verdicts


def test_a_few_rejections_of_others_do_not_pause_all_requests() -> None:
    """If more are accepted than rejected it waits alone; but that is no reason to give up early."""
    policy, past = policy_of(), Rejections()
    for now in (0.0, 10.0):
        reject_again(policy, past, now)
    reject_again(policy, Rejections(), 20.0)
    for now in (30.0, 31.0):
        policy.answered(go_when_allowed(policy, 0, now))
    assert reject_again(policy, past, 40.0) == (None, 2)
    assert past.alone == 0


def test_a_slow_rejection_does_not_count_as_accepted() -> None:
    """After two seconds it had counted as accepted; the rejection corrects this."""
    policy, past, now = policy_of(), Rejections(), 0.0
    for seconds in (1, 2, 4):
        admission = go_when_allowed(policy, 0, now)
        now = admission.at + 3
        assert policy.wait(0, now) == 0
        assert policy.rejected(admission, now, None, past) == seconds
    assert past.alone == 0


@given(st.data(), LIMITS)
def test_whatever_happens_no_pause_is_broken_and_every_request_goes_in_the_end(data: Any, limits: RateLimits) -> None:
    """No request goes before the end of a pause that all requests wait for, and waiting always helps."""
    policy, now, paused_until = RatePolicy(limits, MINUTE, lambda: 0.5), 0.0, 0.0
    open_admissions: list[Admission] = []
    for _ in range(data.draw(st.integers(0, 40))):
        now += data.draw(st.floats(0, 3))
        event = data.draw(st.sampled_from(["go", "answer", "reject", "end"]))
        if event == "go" or not open_admissions:
            admission = go_when_allowed(policy, data.draw(st.integers(1, 120)), now)
            assert admission.at >= paused_until - 1e-5
            now = admission.at
            open_admissions.append(admission)
            continue
        admission = open_admissions.pop(data.draw(st.integers(0, len(open_admissions) - 1)))
        if event == "reject":
            seconds = data.draw(st.none() | st.floats(0, 30))
            past = Rejections()
            policy.rejected(admission, now, seconds, past)
            if not past.wait:  # otherwise only this request waits
                paused_until = max(paused_until, now + (seconds or 0))
        elif event == "end":
            policy.finished(admission)
        elif policy.answered(admission):
            paused_until = 0.0
    go_when_allowed(policy, 1, now)

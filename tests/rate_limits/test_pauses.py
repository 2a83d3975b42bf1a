"""Pauses after rejections, the slow start after a pause, and rejections that pause only their own request."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aswarm import RateLimits
from aswarm._rate_limits.policy import Admission, RatePolicy, Rejections
from tests.rate_limits.test_policy import LIMITS, MINUTE, go_when_allowed, policy_of


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
    policy.answered(old)  # it went before the pause, and is no evidence about the time after it
    newer = go_when_allowed(policy, 0, now)
    assert policy.rejected(newer, newer.at, unsaid, Rejections()) == 45
    now = newer.at
    policy.answered(go_when_allowed(policy, 0, now))
    assert policy.rejected(go_when_allowed(policy, 0, now + 60), now + 60, unsaid, Rejections()) == 0.75


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
    """The server was busy for longer than its Retry-After; after that as many go as after the first pause."""
    policy = policy_of()
    for now in (0.0, 1.0):
        policy.rejected(policy.admit(0, now), now, 1.0, Rejections())
    assert _rounds(policy, 10.0, 3) == [1, 2, 4]


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
        ([(0, 0), (0, 0), (1, 0), (1, 0), (1, 0)], [False, False, True, True, True]),  # the earlier verdict stays true
        ([(0, 0), (0, 0), (1, 1)], [False, False, False]),  # as many rejected as accepted
        ([(0, 0), (0, 0), (2, 1), (2, 1)], [False, False, True, False]),  # more accepted than rejected
    ],
)
def test_when_a_rejection_is_about_one_request_alone(counts: list[tuple[int, int]], verdicts: list[bool]) -> None:
    """From the third one on: if other requests were accepted since the last one, and fewer or none rejected."""
    past = Rejections()
    assert [past.add(accepted, rejected) for accepted, rejected in counts] == verdicts


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


# --- single rejections while other requests succeed ---


def policy_after(accepted: int) -> RatePolicy:
    policy = policy_of()
    for _ in range(accepted):
        policy.answered(policy.admit(0, 0.0))
    return policy


@given(st.integers(0, 200), st.integers(1, 30))
def test_eight_accepted_requests_pay_for_one_rejection(accepted: int, rejections: int) -> None:
    """At most ten rejections are paid in advance, and the next rejection pauses all requests."""
    policy = policy_after(accepted)
    sent = [policy.admit(0, 1.0) for _ in range(rejections)]
    pauses = [policy.rejected(each, 1.0, 5.0, Rejections()) for each in sent]
    paid = min(10, accepted // 8)
    assert pauses[:paid] == [None] * min(paid, rejections)
    assert pauses[paid:] == [5.0, *[None] * (rejections - paid - 1)][: max(0, rejections - paid)]
    assert policy.wait(0, 1.0) == (5.0 if rejections > paid else 0)


def test_a_rejection_that_is_paid_lets_its_own_request_wait() -> None:
    """For its Retry-After; without it, for 1, 2, 4... seconds."""
    policy, past = policy_after(80), Rejections()
    assert policy.rejected(policy.admit(0, 0.0), 0.0, 3.0, past) is None
    assert (past.wait, past.own_wait(0.0), past.own_wait(3.0)) == (3.0, 3.0, 0.0)
    past = Rejections()
    waits = []
    for _ in range(2):
        assert policy.rejected(policy.admit(0, 0.0), 0.0, None, past) is None
        waits.append(past.wait)
    assert waits == [1.0, 2.0]


@pytest.mark.parametrize(("answers", "is_over"), [([0], False), ([3, 4], True), ([0, 3], False), ([4], False)])
def test_a_pause_ends_when_two_later_requests_are_answered(answers: list[int], is_over: bool) -> None:
    """An answer to a request that was sent before the rejected request is no evidence."""
    policy = policy_after(0)
    sent = [policy.admit(0, 0.0) for _ in range(5)]
    assert policy.rejected(sent[2], 0.1, 10.0, Rejections()) == 10
    for number in answers:
        policy.answered(sent[number])
    assert policy.wait(0, 0.2) == (0 if is_over else pytest.approx(9.9))
    if is_over:
        together = [policy.admit(0, 0.2) for _ in range(50) if policy.wait(0, 0.2) == 0]
        assert len(together) == 50, "no slow start after a pause that was wrong"


def test_a_late_rejection_of_an_old_request_stops_no_other_request() -> None:
    """It was sent before a pause, and is rejected long after it, while the requests after the pause succeed."""
    policy = policy_after(0)
    old, cause = policy.admit(0, 0.0), policy.admit(0, 0.0)
    assert policy.rejected(cause, 0.1, 1.0, Rejections()) == 1
    for _ in range(8):
        policy.answered(policy.admit(0, 2.0))
    past = Rejections()
    assert policy.rejected(old, 3.0, 30.0, past) is None
    assert (past.wait, past.own_wait(3.0), policy.wait(0, 3.0)) == (30.0, 30.0, 0.0)


@settings(max_examples=200)
@given(st.data(), st.floats(0, 1))
def test_for_any_share_of_rejections_each_request_goes_in_the_end(data: Any, share: float) -> None:
    """No request goes during a pause, unless two later requests were answered; and a pause has always an end."""
    policy, now, paused_until = RatePolicy(RateLimits(), 60.0, lambda: 0.5), 0.0, 0.0
    sent: list[Admission] = []
    answered = 0
    for _ in range(data.draw(st.integers(0, 60))):
        now += data.draw(st.floats(0, 0.5))
        if policy.wait(0, now) == 0:
            assert now >= paused_until - 1e-5 or answered >= 2
            sent.append(policy.admit(0, now))
        elif not sent:
            now += policy.wait(0, now)
        if sent and data.draw(st.booleans()):
            each = sent.pop(data.draw(st.integers(0, len(sent) - 1)))
            if data.draw(st.floats(0, 1)) < share:
                seconds = policy.rejected(each, now, 1.0, Rejections())
                if seconds is not None:
                    paused_until, answered = now + seconds, 0
            else:
                policy.answered(each)
                answered += 1
            policy.finished(each)
    for _ in range(100):
        now += (wait := policy.wait(0, now))
        if not wait:
            return
    raise AssertionError("no request may ever go")

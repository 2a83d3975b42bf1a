"""Time of the next request: limits per minute, pauses after rejections, and a slow start after a pause.

Never waits, never sends, never reads a clock. Rules:
- In any minute, requests and tokens stay within the limits. The minute is a sliding window, which suits servers with fixed
  windows, sliding windows and token buckets. A request with more tokens than the limit waits until the window has no tokens.
- In any second, at most a sixtieth of `requests_per_minute` is sent; in any ten seconds, at most a sixth. Both numbers are
  rounded up. The reason is that Azure checks a limit over 1 or 10 seconds. If the limit is below 60, requests are sent at equal
  intervals. Tokens are limited only per minute.
- A rejection (429, or any retryable answer with Retry-After) pauses all requests: for the time in the answer or, if it has no
  time, for 1, 2, 4... up to 61 s. Rejections of requests that were in flight together count as one.
- While other requests succeed, only the rejected request waits. Eight accepted requests pay for one rejection, and at most ten
  rejections are paid in advance. Only a rejection that is not paid starts a pause. The pause and its slow start end early if, for
  each rejection, two requests are answered that were sent after the first rejected request. TCP's fast recovery (RFC 5681) uses
  the same evidence.
- After its second rejection, a request waits behind some other requests. If they are accepted and this request is rejected
  again, this request is the cause of its rejections, and only this request waits longer. It fails after four such rejections.
  A rejection counts only if no other request was rejected since the previous rejection of this request.
- After a pause, one request is sent first, and each accepted request allows one more. After another pause, this fast growth
  ends at half of the number of requests in flight that was allowed before. Then each round of answers allows one more. A
  minute after the last rejection, the growth is fast again. A request that is not rejected within two seconds counts as
  accepted, so that the next requests need not wait for a whole answer.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from aswarm._values.errors import Backoff, ConfigurationError, requested_wait
from aswarm._values.json import is_count
from aswarm._values.public_names import explained

# A minute plus one second, because a server counts requests when they arrive, and some requests take longer to arrive.
MINUTE = 61.0
# Lengths of the windows in which a limit applies, in seconds.
_CHECKED = (1, 10, 60)
# Shorter waits count as 0: clocks and sleeps are less precise.
_NOW = 1e-6
# The maximum of rejections of one request. Most of them follow a pause of all requests, which may last a minute.
_MOST_REJECTIONS = 10
_MOST_ALONE = 4
# The accepted requests that pay for one rejection, and the maximum of rejections that are paid in advance. If the provider starts
# to reject all requests, this is the number of rejections before the pause, in addition to the requests in flight.
_PRICE = 8
_MOST_PAID = 10
# The accepted requests for each rejection that end a pause early.
_REFUTING = 2


@explained
@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Maximum of requests and of tokens in any minute, over all runs of a swarm. None means no limit.

    `requests_per_minute` is exact. In any second, at most a sixtieth of this number is sent, rounded up. So 600 allows ten
    requests per second, and 6 allows one request in ten seconds.

    `tokens_per_minute` limits the tokens of requests and answers in a minute, not in a second. This limit is approximate: when
    a request is sent, its tokens are estimated from its size and from earlier answers. Later, the provider's count
    replaces the estimate. Before the first answer the estimate is high, so only a few requests are sent. If the length of the
    answers varies at random, a minute may exceed the limit by up to half. With `max_tokens`, it exceeds the limit by less.

    Each swarm has its own limits, even if two swarms share a client. The limits cannot stop a request that the client has
    already accepted: if it waits for a connection while a 429 arrives, it is still sent. So the client should have at least as
    many connections as there are runs. The default client of openai has 1,000; the aiohttp transport has no limit.

    Raises ConfigurationError for a limit that is not a whole number from 1.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            value: object = getattr(self, name)
            if not (value is None or is_count(value)):
                raise ConfigurationError(f"{name} must be a whole number from 1, or None for no limit; not {value!r}")


@dataclass(slots=True, eq=False)
class Admission:
    """One request that the policy has admitted: its time, its tokens, and its number in the order of sending."""

    at: float
    tokens: int
    number: int
    counts: bool = True
    was_accepted: bool = False


@dataclass(slots=True)
class Rejections:
    """The rejections of one request.

    `times`: their number. `alone`: the number of rejections of which this request alone is the cause.
    `accepted` and `rejected`: how many requests of all runs were accepted and rejected before the last of these rejections.
    `wait`: the seconds that only this request waits. `until`: the time before which this request is not sent again.
    """

    times: int = 0
    alone: int = 0
    accepted: int = 0
    rejected: int = 0
    wait: float = 0.0
    until: float = -math.inf

    def own_wait(self, now: float) -> float:
        """Return the seconds in which only this request is not sent."""
        return wait if (wait := self.until - now) > _NOW else 0.0

    @property
    def are_enough(self) -> bool:
        return self.times >= _MOST_REJECTIONS or self.alone >= _MOST_ALONE

    @property
    def yields(self) -> bool:
        """Whether other requests are sent before this request. Their results show the cause of its rejections."""
        return self.times > 1

    def add(self, accepted: int, rejected: int) -> bool:
        """Count a rejection, with the totals of other requests so far. Return whether this request alone is the cause."""
        accepted_since, rejected_since = accepted - self.accepted, rejected - self.rejected
        self.times += 1
        self.accepted, self.rejected = accepted, rejected
        if self.times <= 2:  # noqa: PLR2004 - so far, no other request was sent between the rejections
            return False
        # If no other request had a result since the last rejection, this request is the cause if it was the cause before.
        is_only_one = rejected_since == 0 and (accepted_since > 0 or self.alone > 0)
        self.alone += is_only_one
        return is_only_one or accepted_since > rejected_since


class _SlidingWindow:
    """The sliding window: the requests that currently count for the limits."""

    def __init__(self, limits: RateLimits, minute: float) -> None:
        self._limits = limits
        self._is_limited = limits != RateLimits()
        self._minute = minute
        most = limits.requests_per_minute or 0
        # Each share is a number of requests, and the seconds in which at most this number may be sent. All shares have the same
        # rate as the limit of a minute, so the shorter shares do not reduce the requests of a minute.
        self._shares = [
            (share, minute * share / most) for share in {math.ceil(most * rate / 60) for rate in _CHECKED} - {0}
        ]
        self._admissions: deque[Admission] = deque()
        self._tokens = 0

    def add(self, admission: Admission) -> None:
        if self._is_limited:
            self._admissions.append(admission)
            self._tokens += admission.tokens

    def add_earlier(self, admissions: Iterable[Admission]) -> None:
        for admission in admissions:
            self.add(admission)
        self._admissions = deque(sorted(self._admissions, key=lambda admission: admission.at))

    def correct(self, admission: Admission, tokens: int) -> None:
        if admission.counts:
            self._tokens += tokens - admission.tokens
            admission.tokens = tokens

    def wait(self, tokens: int, now: float) -> float:
        while self._admissions and self._expires(self._admissions[0]) - now <= _NOW:
            admission = self._admissions.popleft()
            admission.counts = False
            self._tokens -= admission.tokens
        waits = (
            self._admissions[-requests].at + seconds - now
            for requests, seconds in self._shares
            if len(self._admissions) >= requests
        )
        return max(0.0, *waits, self._wait_for_tokens(tokens, now))

    def _expires(self, admission: Admission) -> float:
        return admission.at + self._minute

    def _wait_for_tokens(self, tokens: int, now: float) -> float:
        most = self._limits.tokens_per_minute
        wait = 0.0
        if most is not None:
            excess = self._tokens + min(tokens, most) - most
            for admission in self._admissions:
                if excess <= 0:
                    break
                excess -= admission.tokens
                wait = self._expires(admission) - now
        return wait


class _SlowStart:
    """A limit for requests in flight that may still be rejected, like TCP's slow start (RFC 5681)."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # In a plain dict, it takes long to find the first entry after many removals.
        self._undecided: OrderedDict[Admission, None] = OrderedDict()
        # The undecided requests from before the last pause. They do not count for the limit. Only their answers are evidence.
        self._before: OrderedDict[Admission, None] = OrderedDict()
        self._size = self._half = math.inf
        self._sizes_before = (self._size, self._half)
        # The number of requests that were accepted and not rejected later.
        self.accepted = 0

    def add(self, admission: Admission) -> None:
        self._undecided[admission] = None

    def late(self, now: float) -> Iterator[Admission]:
        """Yield the undecided requests that were sent so long ago that they count as accepted."""
        while self._undecided and self._patience_ends() - now <= _NOW:
            yield next(iter(self._undecided))

    def wait(self, now: float) -> float:
        is_full = bool(self._undecided) and len(self._undecided) + 1 > self._size
        return self._patience_ends() - now if is_full else 0.0

    def _patience_ends(self) -> float:
        return next(iter(self._undecided)).at + self._patience

    def accept(self, admission: Admission) -> bool:
        """Count a request as accepted. Return whether it was undecided."""
        if admission in self._undecided:
            self._size += 1 if self._size < self._half else 1 / self._size
        elif admission not in self._before:
            return False
        self.drop(admission)
        admission.was_accepted = True
        self.accepted += 1
        return True

    def drop(self, admission: Admission) -> None:
        """Remove a request that was neither accepted nor rejected."""
        self._undecided.pop(admission, None)
        self._before.pop(admission, None)

    def restart(self) -> None:
        self._sizes_before = (self._size, self._half)
        if self._size > 1:  # with a size of 1, the rejection shows nothing about the right size
            self._half = self._size / 2
        self._size = 1.0
        self._before.update(self._undecided)
        self._undecided.clear()

    def undo_restart(self) -> None:
        self._size, self._half = self._sizes_before
        self._before.update(self._undecided)
        self._undecided, self._before = self._before, OrderedDict()

    def grow_fast(self) -> None:
        """Grow fast again, because the last rejection was long ago."""
        self._half = math.inf


@dataclass(slots=True)
class _Pause:
    """The last pause, and the results of requests that were in flight when it started.

    `cause`: the number of the rejected request. `first_after`: the number of the first request after the pause, and
    `first_after_earlier` the same for the pause before. `rejected` and `accepted`: the results of requests that were sent after
    the cause and before the pause.
    """

    cause: int
    first_after: int
    first_after_earlier: int
    rejected: int = 1
    accepted: int = 0

    def is_refuted_by(self, admission: Admission) -> bool:
        """Count an accepted request. Return whether enough requests are accepted to end the pause."""
        self.accepted += self.cause < admission.number < self.first_after
        return self.accepted >= _REFUTING * self.rejected


class RatePolicy:
    """Decides the time of the next request. `minute` is in seconds, `jitter` from 0 to 1; all times are from one clock."""

    def __init__(self, limits: RateLimits, minute: float, jitter: Callable[[], float]) -> None:
        self._minute = minute
        self._jitter = jitter
        # The length of a pause of all runs if the answer has no Retry-After.
        self._pause_backoff = Backoff(minute / 60, minute, 0.25)
        self._window = _SlidingWindow(limits, minute)
        self._start = _SlowStart(minute / 30)
        self._paused_until = -math.inf
        self._admitted = 0
        self._pause: _Pause | None = None
        # The number of the first request after the last pause. A rejection of an earlier request starts no new pause.
        self._first_after_pause = 0
        self._pauses_in_a_row = 0
        self._paid = 0.0
        self._rejected = 0
        self._rejected_at = -math.inf

    def wait(self, tokens: int, now: float) -> float:
        """Return the seconds until the next check. 0: a request with this number of tokens may be sent now."""
        if now - self._rejected_at > self._minute:
            self._start.grow_fast()
        for admission in self._start.late(now):
            self._accept(admission)
        wait = max(self._paused_until - now, self._window.wait(tokens, now), self._start.wait(now))
        return wait if wait > _NOW else 0.0

    def admit(self, tokens: int, now: float) -> Admission:
        """Admit a request for which `wait` is 0."""
        admission = Admission(now, tokens, self._admitted)
        self._admitted += 1
        self._window.add(admission)
        self._start.add(admission)
        return admission

    def count_earlier(self, requests: Iterable[tuple[float, int]]) -> None:
        """Count requests that another process has sent, by their time and their tokens."""
        self._window.add_earlier(Admission(at, tokens, -1) for at, tokens in requests)

    def correct(self, admission: Admission, tokens: int) -> None:
        """Replace the estimate by the number of used tokens."""
        self._window.correct(admission, tokens)

    def answered(self, admission: Admission) -> bool:
        """Report that the answer to a request has started. Return whether a pause ends early."""
        pause = self._pause
        self._accept(admission)
        if admission.number >= self._first_after_pause:
            self._pauses_in_a_row = 0
        return pause is not None and self._pause is None

    def finished(self, admission: Admission) -> None:
        """Report the end of a request, so that it is no longer in flight, even without an answer or a rejection."""
        self._start.drop(admission)

    def rejected(
        self, admission: Admission, now: float, retry_after: float | None, rejections: Rejections
    ) -> float | None:
        """Report a rate rejection. Return the seconds of a new pause, or None if no pause starts.

        No pause starts if the request was admitted before the last pause, if accepted requests have paid for the rejection, or
        if this request alone is the cause. In the last two cases, only this request waits, for `rejections.wait`.
        """
        requested = requested_wait(retry_after)
        rejections.until = now + requested
        is_news = admission.number >= self._first_after_pause
        self._start.drop(admission)
        self._start.accepted -= admission.was_accepted
        self._paid -= admission.was_accepted / _PRICE
        if rejections.add(self._start.accepted, self._rejected):
            rejections.wait = max(requested, self._backoff(rejections.times - 1))
            return None
        self._rejected += 1
        rejections.rejected = self._rejected
        # During a pause, the other rejections of requests that were in flight together need not be paid.
        if (is_news or now >= self._paused_until) and self._paid >= 1:
            self._paid -= 1
            rejections.wait = max(requested, self._backoff(rejections.times - (1 if requested else 0)))
            return None
        rejections.wait = 0.0
        if self._pause is not None and not is_news:
            self._pause.rejected += 1
        pause = self._start_pause(admission, now, requested) if is_news else requested
        self._paused_until = max(self._paused_until, now + pause)
        return pause if is_news else None

    def _accept(self, admission: Admission) -> None:
        if not self._start.accept(admission):
            return
        self._paid = min(_MOST_PAID, self._paid + 1 / _PRICE)
        if self._pause is not None and self._pause.is_refuted_by(admission):
            self._end_pause(self._pause)

    def _start_pause(self, admission: Admission, now: float, requested: float) -> float:
        self._pause = _Pause(admission.number, self._admitted, self._first_after_pause)
        self._first_after_pause = self._admitted
        self._pauses_in_a_row += 1
        self._rejected_at = now
        self._start.restart()
        # If an earlier wait, as requested by the server, did not help, the next pause may be longer than requested.
        return max(requested, self._backoff(self._pauses_in_a_row - (1 if requested else 0)))

    def _end_pause(self, pause: _Pause) -> None:
        """End a pause whose requests in flight were accepted, and continue as before the pause."""
        self._pause = None
        self._first_after_pause = pause.first_after_earlier
        self._paused_until = -math.inf
        self._start.undo_restart()

    def _backoff(self, failures: int) -> float:
        return self._pause_backoff.seconds(failures, self._jitter()) if failures else 0.0

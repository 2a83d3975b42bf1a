"""Time of the next request: limits per minute, pauses after rejections, and a slow start after a pause.

Never waits, never sends, never reads a clock. Rules:
- In any minute, requests and tokens stay within the limits. The window slides, which suits servers with fixed windows,
  sliding windows and token buckets. A request that is larger than the limit is sent when no other request counts.
- In any second at most a sixtieth of the requests of a minute is sent, and in ten seconds a sixth, both rounded up: Azure checks
  a limit over 1 or 10 seconds. A limit below 60 spaces its requests evenly. Tokens are limited only per minute.
- A rejection (429, or any retryable answer with Retry-After) pauses all requests: for the time in the answer, otherwise for
  1, 2, 4... up to 61 s. Rejections of requests that were in flight together count as one.
- After its second rejection a request queues behind some others. If the others are accepted and this request is rejected
  again, this request is the cause, and only this request backs off. It fails after four such rejections, if no other request
  was rejected.
- After a pause one request is sent first, and each accepted request allows one more. After another rejection, the number of
  requests in flight grows at this rate only up to half of its last value. Above this half, it grows by one for each round of
  answers, for a minute. A request that is not rejected within two seconds counts as accepted, so that no request waits for a
  whole answer.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_count
from aswarm._wire.backoff import Backoff
from aswarm._wire.failures import requested_wait

# A minute and a second, because a server counts requests when they arrive, and some requests take longer to arrive.
MINUTE = 61.0
# Lengths of the windows in which a limit applies, in seconds.
_CHECKED = (1, 10, 60)
# Shorter waits count as 0: clocks and sleeps are less precise.
_NOW = 1e-6
# The maximum of rejections of one request. Most of them follow a pause of all requests, which may last a minute.
_MOST_REJECTIONS = 10
_MOST_ALONE = 4


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Maximum of requests and of tokens in any minute, over all runs of a swarm. None means no limit.

    `requests_per_minute` is exact, and at most a sixtieth of this number, rounded up, is sent in any second: 600 allows ten
    requests a second, and 6 allows one in ten seconds.

    `tokens_per_minute` counts the tokens of requests and of answers in a minute, not in a second, and is approximate.
    The tokens are estimated when a request is sent, from its size and from earlier answers, and corrected with the
    provider's count. Before the first answer the estimate is high, so only a few requests are sent at first. If short
    and long answers alternate at random, a minute may have up to half more tokens than the limit; `max_tokens` bounds
    this.

    Each swarm has its own limits, also if two swarms share a client. A request inside the client cannot be stopped: a request
    that waits for a connection while a 429 arrives is still sent. Give the client at least as many connections as there are
    runs: openai's default has 1,000, the aiohttp transport of an `AsyncSwarm` has no limit.

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
    """One request that may be sent: its time, and its tokens."""

    at: float
    tokens: int
    generation: int
    counts: bool = True
    was_accepted: bool = False


@dataclass(slots=True)
class Rejections:
    """Rejections of one request. `accepted` and `rejected`: the totals of all requests at the last of these rejections.

    `wait`: the seconds that only this request waits.
    """

    times: int = 0
    alone: int = 0
    accepted: int = 0
    rejected: int = 0
    wait: float = 0.0

    @property
    def are_enough(self) -> bool:
        return self.times >= _MOST_REJECTIONS or self.alone >= _MOST_ALONE

    @property
    def yields(self) -> bool:
        """Whether others are sent before this request: their results show the cause of its rejections."""
        return self.times > 1

    def add(self, accepted: int, rejected: int) -> bool:
        """Count a rejection, with the totals of other requests so far. Return whether this request alone is the cause."""
        accepted_since, rejected_since = accepted - self.accepted, rejected - self.rejected
        self.times += 1
        self.accepted, self.rejected = accepted, rejected
        if self.times <= 2:  # noqa: PLR2004 - sent first until then, so no other request can be compared
            return False
        # If there was no result of another request since the last rejection, the last conclusion stays valid.
        is_only_one = rejected_since == 0 and (accepted_since > 0 or self.alone > 0)
        self.alone += is_only_one
        return is_only_one or accepted_since > rejected_since


class _SlidingWindow:
    """Window of the requests that count against the limits."""

    def __init__(self, limits: RateLimits, minute: float) -> None:
        self._limits = limits
        self._is_limited = limits != RateLimits()
        self._minute = minute
        most = limits.requests_per_minute or 0
        # Each share is a number of requests, and the seconds in which no more requests may be sent. All shares have the same
        # rate, so that together they allow as many requests as the limit of a minute alone.
        self._shares = [
            (share, minute * share / most) for share in {math.ceil(most * each / 60) for each in _CHECKED} - {0}
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
        return max(self._wait_for_requests(now), self._wait_for_tokens(tokens, now))

    def _expires(self, admission: Admission) -> float:
        return admission.at + self._minute

    def _wait_for_requests(self, now: float) -> float:
        return max((self._wait_for_fewer_than(most, seconds, now) for most, seconds in self._shares), default=0.0)

    def _wait_for_fewer_than(self, requests: int, seconds: float, now: float) -> float:
        return 0.0 if len(self._admissions) < requests else self._admissions[-requests].at + seconds - now

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
    """Limit for requests in flight that may still be rejected, as in TCP's slow start."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # A plain dict is slow to find its first entry after many were removed.
        self._undecided: OrderedDict[Admission, None] = OrderedDict()
        self._size = self._half = math.inf
        # The number of requests that were accepted and not rejected later.
        self.accepted = 0

    def add(self, admission: Admission) -> None:
        self._undecided[admission] = None

    def wait(self, now: float) -> float:
        while self._undecided:
            admission = next(iter(self._undecided))
            wait = admission.at + self._patience - now
            if wait > _NOW:
                return 0.0 if len(self._undecided) + 1 <= self._size else wait
            self.accept(admission)
        return 0.0

    def accept(self, admission: Admission) -> None:
        if admission in self._undecided:
            del self._undecided[admission]
            admission.was_accepted = True
            self.accepted += 1
            self._size += 1 if self._size < self._half else 1 / self._size

    def drop(self, admission: Admission) -> None:
        """Remove a request that was neither accepted nor rejected."""
        self._undecided.pop(admission, None)

    def restart(self) -> None:
        """Start with one request, after a pause."""
        if self._size > 1:  # the rejection of a single first request does not show a limit
            self._half = self._size / 2
        self._size = 1.0
        self._undecided.clear()

    def grow_fast(self) -> None:
        """Grow fast again, long after the last rejection."""
        self._half = math.inf


class RatePolicy:
    """Decides the time of the next request. `minute` is in seconds, `jitter` from 0 to 1; all times are from one clock."""

    def __init__(self, limits: RateLimits, minute: float, jitter: Callable[[], float]) -> None:
        self._minute = minute
        self._jitter = jitter
        # For pauses of all runs without a Retry-After.
        self._pause_backoff = Backoff(minute / 60, minute, 0.25)
        self._window = _SlidingWindow(limits, minute)
        self._start = _SlowStart(minute / 30)
        self._paused_until = -math.inf
        # The number of pauses. Rejections of requests that were admitted before the last pause start no new pause.
        self._generation = 0
        self._pauses_in_a_row = 0
        self._rejected = 0
        self._rejected_at = -math.inf

    def wait(self, tokens: int, now: float) -> float:
        """Return the seconds before another check; 0 if a request of so many tokens may be sent now."""
        if now - self._rejected_at > self._minute:
            self._start.grow_fast()
        wait = max(self._paused_until - now, self._window.wait(tokens, now), self._start.wait(now))
        return wait if wait > _NOW else 0.0

    def admit(self, tokens: int, now: float) -> Admission:
        """Admit a request for which `wait` is 0."""
        admission = Admission(now, tokens, self._generation)
        self._window.add(admission)
        self._start.add(admission)
        return admission

    def count_earlier(self, requests: Iterable[tuple[float, int]]) -> None:
        """Count requests that another process has sent, by their time and their tokens."""
        self._window.add_earlier(Admission(at, tokens, self._generation) for at, tokens in requests)

    def correct(self, admission: Admission, tokens: int) -> None:
        """Replace the estimate by the number of used tokens."""
        self._window.correct(admission, tokens)

    def answered(self, admission: Admission) -> None:
        self._start.accept(admission)
        if admission.generation == self._generation:
            self._pauses_in_a_row = 0

    def finished(self, admission: Admission) -> None:
        """Report the end of a request. A request that was neither answered nor rejected has no result."""
        self._start.drop(admission)

    def rejected(
        self, admission: Admission, now: float, retry_after: float | None, rejections: Rejections
    ) -> float | None:
        """Report a rate rejection. Return the seconds of a new pause, or None.

        None if a pause has started since the request was admitted, or if this request alone is the cause. In the second
        case only this request waits, for `rejections.wait`.
        """
        requested = requested_wait(retry_after)
        is_news = admission.generation == self._generation
        self._start.accepted -= admission.was_accepted
        if rejections.add(self._start.accepted, self._rejected):
            rejections.wait = max(requested, self._backoff(rejections.times - 1))
            return None
        self._rejected += 1
        rejections.rejected = self._rejected
        pause = self._pause(now, requested) if is_news else requested
        self._paused_until = max(self._paused_until, now + pause)
        rejections.wait = 0.0
        return pause if is_news else None

    def _pause(self, now: float, requested: float) -> float:
        """Start a pause. Return its seconds."""
        self._generation += 1
        self._pauses_in_a_row += 1
        self._rejected_at = now
        self._start.restart()
        # If the requested wait did not help, the next wait is longer than requested.
        return max(requested, self._backoff(self._pauses_in_a_row - (1 if requested else 0)))

    def _backoff(self, failures: int) -> float:
        return self._pause_backoff.seconds(failures, self._jitter()) if failures else 0.0

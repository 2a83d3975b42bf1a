"""When the next request may go: limits per minute, pauses that the provider asks for, a careful start after a pause.

Decides on numbers and times that it is given; never waits, never sends, never reads a clock. Rules:
- In no minute go more requests, and no more tokens, than the limits allow. The window slides, which suits servers with
  fixed windows, sliding windows and token buckets alike. A request that is larger than the limit goes when no other one
  counts.
- A rejection (429, or any retryable answer with Retry-After) pauses all requests: for as long as the server says,
  otherwise for 1, 2, 4... up to 61 s. Rejections of requests that were in flight together count as one.
- After its second rejection a request queues behind some others. If they are accepted and it is rejected again, the
  rejection is about this request, and only it backs off. After four such rejections, with no other request rejected, it
  fails.
- After a pause one request goes first, and each accepted request lets one more go. If that was too many, the number grows
  so only to half of it, and from there by one for each round of answers, for a minute. A request that is not rejected
  within two seconds counts as accepted: no request waits for a whole answer.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from aswarm._errors import ConfigurationError
from aswarm._json import is_count
from aswarm._wire.failures import requested_wait

from .backoff import pause_backoff

# A server counts requests when they arrive, and not all take equally long. One second more than a minute allows for that.
MINUTE = 61.0
# Less than clocks and sleeps can tell apart.
_NOW = 1e-6
# Rejections of one request. Most of them come after a pause of all requests, which may be a minute long.
_MOST_REJECTIONS = 10
_MOST_ALONE = 4


@dataclass(frozen=True, slots=True)
class RateLimits:
    """At most so many requests, and so many tokens, in any minute, over all runs of a swarm. None: no such limit.

    Tokens are those of requests and of answers. They are estimated when a request goes, from its size and from earlier
    answers, and corrected when the provider has counted them. Before the first answer, an answer counts as a long one,
    so only a few requests go at first. So `requests_per_minute` holds exactly. `tokens_per_minute` holds as far as
    answers are about as long as earlier ones: if short and long answers alternate at random, a minute may have half as
    many tokens again. `max_tokens` bounds this.

    Limits belong to one swarm: two swarms with one client do not know of each other. A request that was given to the
    client is not recalled: if it waits for a connection while a 429 arrives, it is still sent. So give the client at
    least as many connections as there are runs: openai's default has 1,000, `AsyncSwarm(transport="aiohttp")` has no
    limit.

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
    """One request that may go: since when, and for how many tokens it counts."""

    at: float
    tokens: int
    generation: int
    counts: bool = True
    was_accepted: bool = False


@dataclass(slots=True)
class Rejections:
    """The rejections of one request, and the results of other requests at its last one. `wait`: its own wait, in seconds."""

    times: int = 0
    alone: int = 0
    accepted: int = 0
    rejected: int = 0
    wait: float = 0.0

    @property
    def are_enough(self) -> bool:
        """Whether the request fails."""
        return self.times >= _MOST_REJECTIONS or self.alone >= _MOST_ALONE

    @property
    def yields(self) -> bool:
        """Whether the request lets others go first: their results show what the rejections are about."""
        return self.times > 1

    def add(self, accepted: int, rejected: int) -> bool:
        """Count one more, after so many other requests in all. Returns whether it is about this request alone."""
        accepted_since, rejected_since = accepted - self.accepted, rejected - self.rejected
        self.times += 1
        self.accepted, self.rejected = accepted, rejected
        if self.times <= 2:  # noqa: PLR2004 - until then it went first, so there is no other to compare with
            return False
        # If no other request went since then, what was last known stays true.
        is_only_one = rejected_since == 0 and (accepted_since > 0 or self.alone > 0)
        self.alone += is_only_one
        return is_only_one or accepted_since > rejected_since


class _SlidingWindow:
    """The requests that count against the limits."""

    def __init__(self, limits: RateLimits, minute: float) -> None:
        self._limits = limits
        self._is_limited = limits != RateLimits()
        self._minute = minute
        self._admissions: deque[Admission] = deque()
        self._tokens = 0

    def add(self, admission: Admission) -> None:
        if self._is_limited:
            self._admissions.append(admission)
            self._tokens += admission.tokens

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
        most = self._limits.requests_per_minute
        return 0.0 if most is None or len(self._admissions) < most else self._expires(self._admissions[0]) - now

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
    """How many requests may be in flight that may still be rejected: TCP's slow start."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # A plain dict is slow to find its first entry after many were removed.
        self._undecided: OrderedDict[Admission, None] = OrderedDict()
        self._size = self._half = math.inf
        # Requests that were accepted and not rejected later.
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
        """Neither accepted nor rejected."""
        self._undecided.pop(admission, None)

    def restart(self) -> None:
        """Begin with one, after a pause."""
        if self._size > 1:  # a rejection of the single first one says nothing about how many may go
            self._half = self._size / 2
        self._size = 1.0
        self._undecided.clear()

    def forget(self) -> None:
        """The last rejection is long ago: grow fast again."""
        self._half = math.inf


class RatePolicy:
    """When the next request of a swarm may go. `minute` in seconds; times on any one clock; `jitter` from 0 to 1."""

    def __init__(self, limits: RateLimits, minute: float, jitter: Callable[[], float]) -> None:
        self._minute = minute
        self._jitter = jitter
        self._pause_backoff = pause_backoff(minute)
        self._window = _SlidingWindow(limits, minute)
        self._start = _SlowStart(minute / 30)
        self._paused_until = -math.inf
        # The number of pauses. A request that was admitted before the last one brings no news by its rejection.
        self._generation = 0
        self._pauses_in_a_row = 0
        self._rejected = 0
        self._rejected_at = -math.inf

    def wait(self, tokens: int, now: float) -> float:
        """Seconds after which to ask again; 0 if a request of so many tokens may go now."""
        if now - self._rejected_at > self._minute:
            self._start.forget()
        wait = max(self._paused_until - now, self._window.wait(tokens, now), self._start.wait(now))
        return wait if wait > _NOW else 0.0

    def admit(self, tokens: int, now: float) -> Admission:
        """Let a request go, for which `wait` is 0."""
        admission = Admission(now, tokens, self._generation)
        self._window.add(admission)
        self._start.add(admission)
        return admission

    def correct(self, admission: Admission, tokens: int) -> None:
        """Replace the estimate: so many tokens were used."""
        self._window.correct(admission, tokens)

    def answered(self, admission: Admission) -> None:
        """The answer has begun."""
        self._start.accept(admission)
        if admission.generation == self._generation:
            self._pauses_in_a_row = 0

    def ended(self, admission: Admission) -> None:
        """The request has ended. If it was neither answered nor rejected, this says nothing about limits."""
        self._start.drop(admission)

    def rejected(
        self, admission: Admission, now: float, retry_after: float | None, rejections: Rejections
    ) -> float | None:
        """The request was rejected for its rate. Returns the seconds of a new pause, or None if there is no new one.

        There is no new one if a pause for requests of the same time has begun already, or if the rejection is about this
        request alone: then `rejections.wait` says how long it waits.
        """
        asked = requested_wait(retry_after)
        is_news = admission.generation == self._generation
        self._start.accepted -= admission.was_accepted
        if rejections.add(self._start.accepted, self._rejected):
            rejections.wait = max(asked, self._backoff(rejections.times - 1))
            return None
        self._rejected += 1
        rejections.rejected = self._rejected
        pause = self._pause(now, asked) if is_news else asked
        self._paused_until = max(self._paused_until, now + pause)
        rejections.wait = 0.0
        return pause if is_news else None

    def _pause(self, now: float, asked: float) -> float:
        """Begin a pause. Returns its seconds."""
        self._generation += 1
        self._pauses_in_a_row += 1
        self._rejected_at = now
        self._start.restart()
        # If the server asked for a wait that did not help, the next wait is longer than it asks.
        return max(asked, self._backoff(self._pauses_in_a_row - (1 if asked else 0)))

    def _backoff(self, failures: int) -> float:
        return self._pause_backoff.seconds(failures, self._jitter()) if failures else 0.0

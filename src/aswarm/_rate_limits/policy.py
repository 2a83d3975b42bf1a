"""When the next request may go: limits per minute, pauses that the provider asks for, a careful start after them.

Decides on numbers and times that it is given; never waits, never sends, never asks what time it is. Rules:
- In no minute go more requests, and no more tokens, than the limits allow: a sliding window, which suits servers with
  fixed windows, sliding windows and buckets alike. A request that is larger than the limit goes when nothing else counts.
- A refusal (429, or any retryable answer with Retry-After) pauses everything, for as long as the server says, else for
  1, 2, 4... up to 61 s. The refusals of requests that were on their way together are one event.
- From its second refusal on, a request lets others go first. If those are taken and it is refused once more, the refusal
  is about this request, and it alone waits. One that is refused four times so, and nobody else is, will not be taken.
- After a pause one request goes first, and each answer lets one more go at once. If that was too many, it goes on so to
  half as many, and from there by one for each round of answers, for a minute. What is not refused within two seconds
  counts as answered: nobody waits for whole answers.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from aswarm._errors import ConfigurationError

# A server counts requests as they arrive, one sooner than another. A second more than a minute keeps clear of that.
MINUTE = 61.0
# Less than clocks and sleeps can tell apart.
_NOW = 1e-6
# Refusals of one request. Most come after a pause of everybody: minutes, where the provider does not say how long.
_MOST_REFUSALS = 10
_MOST_ALONE = 4
# A longer Retry-After is nonsense, for example a point in time; it is as if nothing had been said.
_LONGEST_PAUSE = 86_400.0


@dataclass(frozen=True, slots=True)
class RateLimits:
    """At most so many requests, and so many tokens, in any minute, over all runs of a swarm. None: no such limit.

    Tokens are those sent and those answered. Until the provider has reported them they are estimated when a request
    goes, from its size and from the answers before; before any, an answer counts as a long one, so the first go a few at
    a time. So `requests_per_minute` holds exactly, `tokens_per_minute` as far as answers are about as long as those
    before them: where short and long ones come at random, a minute may have half as much again. `max_tokens` bounds it.

    Limits belong to a swarm: two swarms on one client do not know of each other. What was let go is not called back:
    requests that wait in a client's pool for a connection when a 429 comes are still sent. So give the client as many
    connections as there are runs: openai's default has 1,000, `AsyncSwarm(transport="aiohttp")` has no limit.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            value: object = getattr(self, name)
            if value is not None and not (type(value) is int and value >= 1):
                raise ConfigurationError(f"{name} must be a whole number from 1, or None for no limit; not {value!r}")


@dataclass(slots=True, eq=False)
class Place:
    """One request that was let go: when, and for how many tokens it counts."""

    at: float
    tokens: int
    generation: int
    counts: bool = True
    was_taken: bool = False


@dataclass(slots=True)
class Refusals:
    """How often one request was refused, and how others had fared by then. `wait`: seconds that it waits by itself."""

    times: int = 0
    alone: int = 0
    taken: int = 0
    refused: int = 0
    wait: float = 0.0

    @property
    def are_enough(self) -> bool:
        """Whether to give up."""
        return self.times >= _MOST_REFUSALS or self.alone >= _MOST_ALONE

    @property
    def let_others_by(self) -> bool:
        """Whether it has been first often enough: only what becomes of others tells whom the refusals are about."""
        return self.times > 1

    def add(self, taken: int, refused: int) -> bool:
        """One more, after so many others in all. Whether it is about this request, and not about all of them."""
        taken_since, refused_since = taken - self.taken, refused - self.refused
        self.times += 1
        self.taken, self.refused = taken, refused
        if self.times <= 2:  # noqa: PLR2004 - the second time it had gone first again
            return False
        # Where the others come to an end, the last that was known of them stays true.
        is_only_one = refused_since == 0 and (taken_since > 0 or self.alone > 0)
        self.alone += is_only_one
        return is_only_one or taken_since > refused_since


class _LastMinute:
    """What counts against the limits."""

    def __init__(self, limits: RateLimits, minute: float) -> None:
        self._limits = limits
        self._is_limited = limits != RateLimits()
        self._minute = minute
        self._places: deque[Place] = deque()
        self._tokens = 0

    def add(self, place: Place) -> None:
        if self._is_limited:
            self._places.append(place)
            self._tokens += place.tokens

    def correct(self, place: Place, tokens: int) -> None:
        if place.counts:
            self._tokens += tokens - place.tokens
            place.tokens = tokens

    def wait(self, tokens: int, now: float) -> float:
        while self._places and self._expires(self._places[0]) - now <= _NOW:
            place = self._places.popleft()
            place.counts = False
            self._tokens -= place.tokens
        return max(self._wait_for_requests(now), self._wait_for_tokens(tokens, now))

    def _expires(self, place: Place) -> float:
        return place.at + self._minute

    def _wait_for_requests(self, now: float) -> float:
        most = self._limits.requests_per_minute
        return 0.0 if most is None or len(self._places) < most else self._expires(self._places[0]) - now

    def _wait_for_tokens(self, tokens: int, now: float) -> float:
        most = self._limits.tokens_per_minute
        wait = 0.0
        if most is not None:
            excess = self._tokens + min(tokens, most) - most
            for place in self._places:
                if excess <= 0:
                    break
                excess -= place.tokens
                wait = self._expires(place) - now
        return wait


class _Start:
    """How many requests may be on their way of which it is not known whether they are refused: TCP's slow start."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        # A plain dict takes long to find its first one after many were removed.
        self._open: OrderedDict[Place, None] = OrderedDict()
        self._size = self._half = math.inf
        # How many were not refused, of those that went after the last pause before them.
        self.taken = 0

    def add(self, place: Place) -> None:
        self._open[place] = None

    def wait(self, now: float) -> float:
        while self._open:
            place = next(iter(self._open))
            wait = place.at + self._patience - now
            if wait > _NOW:
                return 0.0 if len(self._open) + 1 <= self._size else wait
            self.accepted(place)
        return 0.0

    def accepted(self, place: Place) -> None:
        if place in self._open:
            del self._open[place]
            place.was_taken = True
            self.taken += 1
            self._size += 1 if self._size < self._half else 1 / self._size

    def lost(self, place: Place) -> None:
        """Neither answered nor refused."""
        self._open.pop(place, None)

    def refused(self) -> None:
        if self._size > 1:  # that one was too many says nothing about how many there may be
            self._half = max(1.0, self._size / 2)
        self._size = 1.0
        self._open.clear()

    def forget(self) -> None:
        """It was long ago that so many were too many."""
        self._half = math.inf


def backoff(times: int, first: float, longest: float, less: float) -> float:
    """Seconds to wait after so many failures, from 1: doubled each time, and less a share that is left to chance."""
    return min(longest, first * 2.0 ** min(times - 1, 30)) * (1 - less)


class Pace:
    """When the next request of a swarm may go. `minute` in seconds; times on any one clock; `jitter` from 0 to 1."""

    def __init__(self, limits: RateLimits, minute: float, jitter: Callable[[], float]) -> None:
        self._minute = minute
        self._jitter = jitter
        self._counted = _LastMinute(limits, minute)
        self._start = _Start(minute / 30)
        self._paused_until = -math.inf
        # Counts the pauses: whoever was let go before one is not the first to hear of it.
        self._generation = 0
        self._refusals = 0
        self._refused = 0
        self._refused_at = -math.inf

    def wait(self, tokens: int, now: float) -> float:
        """Seconds after which to ask again; 0 where a request of so many tokens may go now."""
        if now - self._refused_at > self._minute:
            self._start.forget()
        wait = max(self._paused_until - now, self._counted.wait(tokens, now), self._start.wait(now))
        return wait if wait > _NOW else 0.0

    def go(self, tokens: int, now: float) -> Place:
        """Let a request go, for which `wait` is 0."""
        place = Place(now, tokens, self._generation)
        self._counted.add(place)
        self._start.add(place)
        return place

    def used(self, place: Place, tokens: int) -> None:
        """So many tokens it really was."""
        self._counted.correct(place, tokens)

    def answered(self, place: Place) -> None:
        """The answer has begun."""
        self._start.accepted(place)
        if place.generation == self._generation:
            self._refusals = 0

    def lost(self, place: Place) -> None:
        """It failed or was cancelled, with no word about limits."""
        self._start.lost(place)

    def refused(self, place: Place, now: float, retry_after: float | None, past: Refusals) -> float | None:
        """It was refused for its rate: pause. The seconds, or None where that was known already or concerns it alone."""
        asked = retry_after if retry_after is not None and retry_after <= _LONGEST_PAUSE else 0.0
        is_news = place.generation == self._generation
        self._start.taken -= place.was_taken
        is_about_it = past.add(self._start.taken, self._refused)
        if is_about_it:
            past.wait = max(asked, self._backoff(past.times - 1))
            return None
        self._refused += 1
        past.refused = self._refused
        pause = self._pause(now, asked) if is_news else asked
        self._paused_until = max(self._paused_until, now + pause)
        past.wait = 0.0
        return pause if is_news else None

    def _pause(self, now: float, asked: float) -> float:
        """The seconds of a new pause."""
        self._generation += 1
        self._refusals += 1
        self._refused_at = now
        self._start.refused()
        # A wait that was asked for and did not help is not believed a second time.
        return max(asked, self._backoff(self._refusals - (1 if asked else 0)))

    def _backoff(self, times: int) -> float:
        return backoff(times, self._minute / 60, self._minute, self._jitter() / 4) if times else 0.0

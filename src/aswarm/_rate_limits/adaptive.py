"""How many runs to hold open at once, found out from what becomes of requests.

Decides on what it is told; never waits, never asks what time it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# What is left after a refusal for the rate, and after an answer that the provider is overloaded: single ones of these
# come at all times.
_AFTER_PAUSE = 0.5
_AFTER_OVERLOAD = 0.75


class RequestObserver(Protocol):
    """Whoever wants to know how the requests of a swarm fare. Called from any thread; must not block."""

    def answered(self) -> None:
        """The answer to a request has begun."""
        ...

    def overloaded(self) -> None:
        """A request failed as it does where there is too much to do: a 5xx, a timeout, no connection."""
        ...

    def paused(self, seconds: float, /) -> None:
        """The provider refused a request for its rate: all requests wait for so long."""
        ...


class AdaptiveLimit:
    """How many runs to hold open at once, found out: additive increase, multiplicative decrease (Chiu and Jain, 1989).

    One more after each round of answers (until the first trouble: after each answer), but only while at least half as
    many run: what is not used is not known to be possible (RFC 7661). Half as many at each pause of the swarm, a quarter
    less where the provider is overloaded, at most once for a round; never below 1, never above `ceiling`.
    """

    def __init__(self, start: int = 10, ceiling: int = 1000) -> None:
        self._size = float(min(start, ceiling))
        self._ceiling = ceiling
        self._has_had_trouble = False
        # Of those that were on their way when it fell: what they come to says nothing about what it is now.
        self._on_their_way = 0
        self._running: Callable[[], int] | None = None
        self._grown: Callable[[], object] | None = None

    def watch(self, running: Callable[[], int], grown: Callable[[], object]) -> None:
        """From now on ask how many runs there are, and say when there may be one more, from any thread."""
        self._running, self._grown = running, grown

    @property
    def limit(self) -> int:
        """How many at once, now."""
        return int(self._size)

    def answered(self) -> None:
        """A request was not refused."""
        self._on_their_way = max(0, self._on_their_way - 1)
        before = self.limit
        if self._running is None or 2 * self._running() >= before:
            self._size = min(self._ceiling, self._size + (1 / self._size if self._has_had_trouble else 1))
        if self._grown is not None and self.limit > before:
            self._grown()

    def overloaded(self) -> None:
        """A request failed: the provider has too much to do."""
        if self._on_their_way:
            self._on_their_way -= 1
        else:
            self._fall(_AFTER_OVERLOAD)

    def paused(self, _seconds: float, /) -> None:
        """The provider refused a request: all wait."""
        self._fall(_AFTER_PAUSE)

    def _fall(self, part: float) -> None:
        self._has_had_trouble = True
        running = self.limit if self._running is None else self._running()
        self._on_their_way = max(0, min(self.limit, running) - 1)
        self._size = max(1.0, self._size * part)

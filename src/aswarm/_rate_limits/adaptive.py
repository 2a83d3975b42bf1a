"""How many runs a batch holds open at once, learned from the results of requests.

Decides on events that it is given; never waits, and never reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# The share of the limit that is left after a rejection for the rate, and after an overload. Single overloads happen at
# all times, so they cut less.
_AFTER_PAUSE = 0.5
_AFTER_OVERLOAD = 0.75


class RequestObserver(Protocol):
    """Gets the results of all requests of a swarm. Called from any thread; must not block."""

    def answered(self) -> None:
        """The answer to a request has begun."""
        ...

    def overloaded(self) -> None:
        """A request failed because the provider has too much to do: a 5xx, a timeout, no connection."""
        ...

    def paused(self) -> None:
        """The provider rejected a request for its rate: all requests wait."""
        ...


class AdaptiveLimit:
    """How many runs to hold open at once: additive increase, multiplicative decrease (Chiu and Jain, 1989).

    The limit grows by one after each round of answers (until the first trouble: after each answer), but only while at
    least half of it is used: a limit that is not used is not known to be possible (RFC 7661). It falls to a half at each
    pause of the swarm, and by a quarter at an overload, at most once in a round; never below 1, never above `ceiling`.
    """

    def __init__(self, start: int = 10, ceiling: int = 1000) -> None:
        self._size = float(min(start, ceiling))
        self._ceiling = ceiling
        self._has_had_trouble = False
        # Requests in flight when the limit was cut. Their results say nothing about the new limit.
        self._in_flight_at_cut = 0
        self._running: Callable[[], int] | None = None
        self._grown: Callable[[], object] | None = None

    def watch(self, running: Callable[[], int], grown: Callable[[], object]) -> None:
        """From now on ask `running` how many runs there are, and call `grown`, from any thread, when the limit grows."""
        self._running, self._grown = running, grown

    @property
    def limit(self) -> int:
        """How many runs at once, now."""
        return int(self._size)

    def answered(self) -> None:
        """A request was accepted."""
        self._in_flight_at_cut = max(0, self._in_flight_at_cut - 1)
        before = self.limit
        if self._running is None or 2 * self._running() >= before:
            self._size = min(self._ceiling, self._size + (1 / self._size if self._has_had_trouble else 1))
        if self._grown is not None and self.limit > before:
            self._grown()

    def overloaded(self) -> None:
        """A request failed: the provider has too much to do."""
        if self._in_flight_at_cut:
            self._in_flight_at_cut -= 1
        else:
            self._cut(_AFTER_OVERLOAD)

    def paused(self) -> None:
        """The provider rejected a request: all requests wait."""
        self._cut(_AFTER_PAUSE)

    def _cut(self, share: float) -> None:
        self._has_had_trouble = True
        running = self.limit if self._running is None else self._running()
        self._in_flight_at_cut = max(0, min(self.limit, running) - 1)
        self._size = max(1.0, self._size * share)

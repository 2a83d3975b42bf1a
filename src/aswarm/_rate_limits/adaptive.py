"""A limit for the concurrent runs of a batch, learned from the results of requests. It never waits, and never reads a clock."""

from __future__ import annotations

from collections.abc import Callable

# The factors for the limit after a rate rejection, and after an overload. Single overloads are normal, so the second factor is
# closer to 1.
_AFTER_PAUSE = 0.5
_AFTER_OVERLOAD = 0.75


class AdaptiveLimit:
    """A limit for concurrent runs: additive increase, multiplicative decrease (Chiu and Jain, 1989).

    The limit grows by one after each round of answers; before the first rejection or overload, even after each answer. It grows
    only while at least half of it is used, because otherwise no result tests a higher limit (RFC 7661). A pause of the swarm
    halves the limit, until the pause ends early. An overload reduces it by a quarter, but only once in a round. The limit stays between 1 and `ceiling`.
    Any thread may report results, and reporting does not block.
    """

    def __init__(self, start: int = 10, ceiling: int = 1000) -> None:
        self._size = float(min(start, ceiling))
        self._ceiling = ceiling
        self._has_had_trouble = False
        # The number of requests that were in flight when the limit was reduced. Their results do not depend on the new limit.
        self._in_flight_at_cut = 0
        # The size and `_has_had_trouble` before the last pause, if nothing has reduced the limit since.
        self._before_pause: tuple[float, bool] | None = None
        self._running: Callable[[], int] = lambda: self.limit
        self._grown: Callable[[], object] = lambda: None

    def watch(self, running: Callable[[], int], grown: Callable[[], object]) -> None:
        """Set two callbacks. `running`: returns the number of runs. `grown`: called when the limit grows, in any thread."""
        self._running, self._grown = running, grown

    @property
    def limit(self) -> int:
        return int(self._size)

    def answered(self) -> None:
        """Report that the answer to a request has started."""
        self._in_flight_at_cut = max(0, self._in_flight_at_cut - 1)
        before = self.limit
        if 2 * self._running() >= before:
            self._size = min(self._ceiling, self._size + (1 / self._size if self._has_had_trouble else 1))
        if self.limit > before:
            self._grown()

    def overloaded(self) -> None:
        """Report an overload of the provider: a 5xx, a timeout, no connection."""
        if self._in_flight_at_cut:
            self._in_flight_at_cut -= 1
        else:
            self._cut(_AFTER_OVERLOAD)

    def paused(self) -> None:
        """Report a rate rejection, after which all requests wait."""
        before = (self._size, self._has_had_trouble)
        self._cut(_AFTER_PAUSE)
        self._before_pause = before

    def resumed(self) -> None:
        """Report that the last pause ends early, because other requests have succeeded: it was no reason to reduce the limit."""
        if self._before_pause is not None:
            size, self._has_had_trouble = self._before_pause
            self._size = max(self._size, size)
            self._in_flight_at_cut = 0
            self._before_pause = None
            self._grown()

    def _cut(self, share: float) -> None:
        self._has_had_trouble = True
        self._before_pause = None
        self._in_flight_at_cut = max(0, min(self.limit, self._running()) - 1)
        self._size = max(1.0, self._size * share)

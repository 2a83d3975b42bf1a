"""How long to wait before a failed request is sent again: one formula, and the numbers for each use of it.

Decides on counts and a random number that it is given; never waits. What failed, and whether to wait at all, is decided
in `_wire.failures` and by the callers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter. The wait doubles with each failure in a row.

    `first`: seconds after the first failure; `longest`: seconds at most; `jitter`: the largest share of a wait that
    chance takes away. It keeps requests that failed together from coming back together.
    """

    first: float
    longest: float
    jitter: float

    def seconds(self, failures: int, chance: float) -> float:
        """Seconds to wait after so many failures in a row, from 1. `chance`: a random number from 0 to 1."""
        doubled = self.first * 2.0 ** min(failures - 1, 30)
        return min(self.longest, doubled) * (1 - self.jitter * chance)


# What the openai SDK waits. The rate limiter sends again in its place.
SDK_BACKOFF = Backoff(0.5, 8.0, 0.25)
# Between the attempts of a completion, in a batch and in `aswarm.middleware.retry`.
ATTEMPT_BACKOFF = Backoff(1.0, 60.0, 0.5)


def pause_backoff(minute: float) -> Backoff:
    """For pauses of all runs, if the provider does not say how long: 1 s to a minute."""
    return Backoff(minute / 60, minute, 0.25)

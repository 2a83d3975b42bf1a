"""Waits before a retry: one formula, with numbers for each use. Other modules decide whether to retry."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with jitter. The wait doubles with each failure in a row.

    `first`: the seconds after the first failure.
    `longest`: the maximum of the seconds, before the jitter.
    `jitter`: the largest share by which a wait is shortened at random. So requests that failed together are not all retried
    at the same moment.
    """

    first: float
    longest: float
    jitter: float

    def seconds(self, failures: int, chance: float) -> float:
        """Return the seconds to wait. `failures`: the failures in a row, from 1. `chance`: a random number from 0 to 1."""
        doubled = self.first * 2.0 ** min(failures - 1, 30)
        return min(self.longest, doubled) * (1 - self.jitter * chance)


# The waits of the openai SDK, for the rate limiter and `HTTPSource`, which retry instead of the SDK.
SDK_BACKOFF = Backoff(0.5, 8.0, 0.25)
# The waits between the attempts of a completion, in a batch and in `aswarm.middleware.retry`.
ATTEMPT_BACKOFF = Backoff(1.0, 60.0, 0.5)

"""Failures of completions and their retries: the kind of a failure, the wait before a retry, and the last attempt.

The module reads a finished `CompletionError`, which may come from a user's own source. It never waits and never sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .errors import CompletionError, StreamInterrupted, set_attribute

# permanent: the same request would fail again.
# rate_limited: the provider has rejected the request, and accepts no more requests for now.
# overloaded: the provider has too much load: a 5xx status, a timeout, or no connection.
# transient: any other temporary failure: 408, 409, a malformed tool call of the model, an interrupted stream.
FailureKind: TypeAlias = Literal["permanent", "rate_limited", "overloaded", "transient"]

TOO_MANY_REQUESTS = 429
SERVER_ERRORS = 500  # the first status of the server's own failures
# A longer Retry-After is ignored. It must be a mistake, such as a timestamp instead of seconds.
_LONGEST_WAIT = 86_400.0


def classify(error: CompletionError) -> FailureKind:
    """Return the kind of a failure. Reads only the public attributes of the error."""
    if not error.retryable:
        return "permanent"
    if isinstance(error, StreamInterrupted):
        return "transient"
    if error.status_code == TOO_MANY_REQUESTS or error.retry_after is not None:
        return "rate_limited"
    if error.status_code is None or error.status_code >= SERVER_ERRORS:
        return "overloaded"
    return "transient"


def requested_wait(seconds: float | None) -> float:
    """Return the seconds of a Retry-After; 0 for None, and for more than a day, which must be a mistake."""
    return seconds if seconds is not None and seconds <= _LONGEST_WAIT else 0.0


def give_up(error: CompletionError, run_id: str) -> None:
    """Mark an error after the last retry (of the rate limiter or `retry`). Then no outer `retry` of this run retries it."""
    set_attribute(error, "_given_up_in", run_id)  # the id of the run, because a source may raise one error in many runs


def is_given_up(error: CompletionError, run_id: str) -> bool:
    return getattr(error, "_given_up_in", None) == run_id


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

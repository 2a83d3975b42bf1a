"""Retries of completions, as middleware.

Decides how often a failed completion is asked for, and how long to wait before. It stands in the completion handler, so
the run does not notice: its history, its context and the calls that it has carried out stay as they are. A run that is
begun again would force a forced `tool_choice` a second time.

No retry library: the rest of one would be a formula and a sleep, and none can wrap an async generator.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio

from aswarm._errors import CompletionError, ConfigurationError
from aswarm._rate_limits.policy import backoff
from aswarm._run.handlers import Handlers, Middleware
from aswarm._wire.accumulator import Accumulator, whole_message
from aswarm._wire.request import CompletionRequest
from aswarm._wire.retry_after import is_rate_limited

logger = logging.getLogger("aswarm")

# Seconds before the second attempt; doubled for each later one, up to the longest.
FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0


def retry(attempts: int = 3) -> Middleware:
    """Middleware that asks for a completion again when it failed in a way that may pass (`CompletionError.retryable`).

    `attempts`: requests for one completion, at most; the client's own retries are switched off. Waits are about 1, 2,
    4... up to 60 seconds, a `Retry-After` at least. A streamed completion is asked for again only while none of its chunks
    has been passed on. Raises ConfigurationError where `attempts` is no whole number from 1.
    """
    check_attempts(attempts)
    return lambda handlers: Retries(attempts).middleware(handlers)


def check_attempts(attempts: object) -> None:
    """Raise ConfigurationError where `attempts` is no whole number from 1."""
    if not isinstance(attempts, int) or isinstance(attempts, bool) or attempts < 1:
        raise ConfigurationError(f"attempts must be a whole number from 1, not {attempts!r}")


class Retries:
    """The retries of one run: at most `attempts` requests for one completion.

    `made`: 0 until the run has begun, then 1, and one more for each time a completion is asked for again. `label` is put
    in front of what is logged. `waits_for_rate`: whether a rejection for the rate (429) is retried here too; a batch has
    the rate limiter of the swarm do that.
    """

    __slots__ = ("_attempts", "_label", "_waits_for_rate", "made")

    def __init__(self, attempts: int, label: str = "", *, waits_for_rate: bool = True) -> None:
        self._attempts = attempts
        self._label = label
        self._waits_for_rate = waits_for_rate
        self.made = 0

    def middleware(self, handlers: Handlers) -> Handlers:
        """The same handlers, with a completion handler that asks again."""
        self.made = 1

        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            once = replace(request, max_retries=0)
            attempt = 1
            while True:
                has_begun = False
                received: list[Mapping[str, Any]] = []
                chunks = handlers.complete(once)
                try:
                    async with aclosing(chunks if request.stream else _whole(chunks, received)) as passed_on:
                        async for chunk in passed_on:
                            has_begun = True
                            yield chunk
                except CompletionError as error:
                    if has_begun or attempt == self._attempts or not self._may_pass(error, received):
                        raise
                    attempt += 1
                    seconds = max(wait_before(attempt), error.retry_after or 0.0)
                    run_id = {"run_id": handlers.run.id}
                    logger.info("%sasking again in %.1f s after: %s", self._label, seconds, error, extra=run_id)
                else:
                    return
                await anyio.sleep(seconds)
                self.made += 1

        return replace(handlers, complete=complete)

    def _may_pass(self, error: CompletionError, received: list[Mapping[str, Any]]) -> bool:
        # The rate limiter has waited for a rejected request, but not for an answer that broke off.
        was_waited_for = not self._waits_for_rate and is_rate_limited(error) and not received
        return error.retryable and not was_waited_for


def wait_before(attempt: int) -> float:
    """Seconds to wait before the second and later attempts: doubled each time, and between half and all of it.

    The half that is left to chance keeps requests that failed together from coming back together.
    """
    return backoff(attempt - 1, FIRST_WAIT, LONGEST_WAIT, random.uniform(0.0, 0.5))  # noqa: S311 - nothing secret


async def _whole(
    chunks: AsyncGenerator[Mapping[str, Any], None], received: list[Mapping[str, Any]]
) -> AsyncGenerator[Mapping[str, Any], None]:
    """All chunks of a completion, once it is whole. Raises what the run would raise on reading them."""
    async with aclosing(chunks):
        async for chunk in chunks:
            received.append(chunk)  # noqa: PERF401 - the caller needs those before a failure
    if len(received) != 1 or whole_message(received[0]) is None:
        accumulator = Accumulator()
        for chunk in received:
            accumulator.feed(chunk)
        accumulator.finish()
    for chunk in received:
        yield chunk

"""Retries of completions, as middleware.

Decides how often a failed completion is asked for, and how long to wait before the next attempt. The run does not notice
a retry: its history, its context and the calls that it has carried out stay as they are. To begin the whole run again
would force a forced `tool_choice` a second time.

No retry library: it would replace a formula and a sleep, and none can wrap an async generator.
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
from aswarm._json import is_count
from aswarm._rate_limits.backoff import ATTEMPT_BACKOFF
from aswarm._run.handlers import Handlers, Middleware, isolated
from aswarm._wire.failures import classify, give_up, is_given_up, requested_wait
from aswarm._wire.request import CompletionRequest

from ._answers import checked

logger = logging.getLogger("aswarm")


def retry(attempts: int = 3) -> Middleware:
    """Middleware that asks for a completion again when it failed in a way that may pass (`CompletionError.retryable`).

    `attempts`: how many requests are sent for one completion at most. The client's own retries are switched off.

    Waits are about 1, 2, 4... up to 60 seconds, and at least as long as a `Retry-After` says. A streamed completion is
    retried only while none of its chunks has been passed on; a whole one also if its answer was incomplete.

    Retries do not multiply. With limits, or in a batch, the swarm itself waits after a 429; when it gives up, `retry` gives
    up too. A `retry` around another one, such as the `attempts` of a batch, does not begin again after the inner one has
    given up.

    Raises ConfigurationError if `attempts` is not a whole number from 1.
    """
    if not is_count(attempts):
        raise ConfigurationError(f"attempts must be a whole number from 1, not {attempts!r}")

    def wrap(handlers: Handlers) -> Handlers:
        # Each attempt has its own request, because middleware further in may change it.
        return Retries(attempts).middleware(replace(handlers, complete=isolated(handlers.complete)))

    return wrap


class Retries:
    """The retries of one run: at most `attempts` requests for one completion.

    `made`: 0 until the run has begun, then 1, and one more each time a completion is asked for again. `label` stands
    in front of each log message.
    """

    __slots__ = ("_attempts", "_label", "made")

    def __init__(self, attempts: int, label: str = "") -> None:
        self._attempts = attempts
        self._label = label
        self.made = 0

    def middleware(self, handlers: Handlers) -> Handlers:
        """The same handlers, with a completion handler that asks again."""
        self.made = 1

        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            once = replace(request, max_retries=0)
            attempt = 1
            while True:
                has_begun = False
                chunks = handlers.complete(once)
                try:
                    async with aclosing(checked(chunks, stream=request.stream)) as passed_on:
                        async for chunk in passed_on:
                            has_begun = True
                            yield chunk
                except CompletionError as error:
                    if has_begun or not self._goes_again(attempt, error, handlers.run.id):
                        raise
                    seconds = _wait_after(attempt, error)
                    fields = handlers.run.log_fields
                    logger.info("%sasking again in %.1f s after: %s", self._label, seconds, error, extra=fields)
                else:
                    return
                await anyio.sleep(seconds)
                attempt += 1
                self.made += 1

        return replace(handlers, complete=complete)

    def _goes_again(self, attempt: int, error: CompletionError, run_id: str) -> bool:
        if classify(error) == "permanent" or is_given_up(error, run_id):
            return False
        if attempt == self._attempts:
            give_up(error, run_id)
            return False
        return True


def _wait_after(attempt: int, error: CompletionError) -> float:
    own = ATTEMPT_BACKOFF.seconds(attempt, random.random())  # noqa: S311 - not used for security
    return max(own, requested_wait(error.retry_after))

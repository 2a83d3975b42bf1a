"""Retries of completions, as middleware.

`retry` decides the number of attempts and the wait before each attempt. A retry repeats only one completion: the history, the
context variables and the finished calls of the run stay. A restart of the whole run would run its tools again, and would apply
a forced `tool_choice` a second time.

A retry library would replace only a formula and a sleep, and none can wrap an async generator.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio

from aswarm._values.errors import CompletionError, check_count
from aswarm._values.failures import ATTEMPT_BACKOFF, classify, give_up, is_given_up, requested_wait
from aswarm.extensions import Accumulator, CompletionRequest, Handlers, Middleware

from ._recording import as_one_chunk

logger = logging.getLogger("aswarm")


def retry(attempts: int = 3) -> Middleware:
    """Return middleware that retries a completion after a temporary failure (`CompletionError.retryable`).

    `attempts`: the maximum number of requests for one completion. The client's own retries are turned off.

    Waits are about 1, 2, 4... up to 60 seconds, and at least as long as a `Retry-After`. A streamed completion is retried
    only if no content was shown yet; a role is not content. A completion without streaming is also retried if it was
    incomplete.

    Retries do not multiply. With limits, or in a batch, the swarm itself waits after a 429. When the swarm gives up, `retry`
    gives up too. In the same way, an outer `retry`, such as the `attempts` of a batch, does not retry after an inner `retry`
    has given up.

    Raises ConfigurationError if `attempts` is not a whole number from 1.
    """
    check_count("attempts", attempts)

    def wrap(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            return handlers.complete(request.copy())  # for each attempt, because inner middleware may change it

        return Retries(attempts).middleware(replace(handlers, complete=complete))

    return wrap


class Retries:
    """Retries of one run: at most `attempts` requests for one completion.

    `attempts_made`: 0 before the run, then 1 plus the number of retries. `label`: the prefix of each log message.
    """

    __slots__ = ("_attempts", "_label", "attempts_made")

    def __init__(self, attempts: int, label: str = "") -> None:
        self._attempts = attempts
        self._label = label
        self.attempts_made = 0

    def middleware(self, handlers: Handlers) -> Handlers:
        """Return the handlers with a completion handler that retries."""
        self.attempts_made = 1

        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            without_retries = replace(request, max_retries=0)  # no retries of the client, because they would multiply
            attempt = 1
            while True:
                has_started = False
                chunks = handlers.complete(without_retries)
                try:
                    async with aclosing(checked(chunks, stream=request.stream)) as passed_on:
                        async for chunk in passed_on:
                            has_started = True
                            yield chunk
                except CompletionError as error:
                    if has_started or not self._should_retry(attempt, error, handlers.run.run_id):
                        raise
                    own_wait = ATTEMPT_BACKOFF.seconds(attempt, random.random())  # noqa: S311 - not used for security
                    seconds = max(own_wait, requested_wait(error.retry_after))
                    fields = handlers.run.log_fields
                    logger.info("%sretrying in %.1f s after: %s", self._label, seconds, error, extra=fields)
                else:
                    return
                await anyio.sleep(seconds)
                attempt += 1
                self.attempts_made += 1

        return replace(handlers, complete=complete)

    def _should_retry(self, attempt: int, error: CompletionError, run_id: str) -> bool:
        """Return whether to retry. After the last attempt, mark the error, so that no outer `retry` retries it."""
        may_pass = classify(error) != "permanent" and not is_given_up(error, run_id)
        if may_pass and attempt == self._attempts:
            give_up(error, run_id)
        return may_pass and attempt < self._attempts


async def checked(
    chunks: AsyncGenerator[Mapping[str, Any], None], *, stream: bool
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Yield the same chunks. Before the first chunk, raise the CompletionError that the run would raise.

    The chunks of a stream are delayed until one has content; a role is not content. A completion that is not a stream is read
    completely first.
    """
    async with aclosing(chunks):
        if not stream:
            received = [chunk async for chunk in chunks]
            as_one_chunk(received)  # raises if the chunks are not a completion
            for chunk in received:
                yield chunk
            return
        delayed: list[Mapping[str, Any]] = []
        accumulator = Accumulator()
        async for chunk in chunks:
            delayed.append(chunk)
            delta = accumulator.feed(chunk) or {}
            if any(value for key, value in delta.items() if key != "role"):
                break
        else:
            accumulator.finish()
        for chunk in delayed:
            yield chunk
        async for chunk in chunks:
            yield chunk

"""Asking again: a completion that failed in a way that may pass is asked for once more, after a while.

How often is decided here alone: the client, and whoever keeps the limits of the swarm, are told not to ask again by
themselves. A refusal for the rate is another matter. It is no failure, is waited for behind this door, and is final when
it comes through.

Wraps the first door, so that the run itself does not notice: its history, its context and the calls that it has carried
out stay as they are. A run begun anew from what the failed one had left would not do: a `tool_choice` that forces a
call would force it a second time, and a journal would see two runs of one item.

No retry library: what is left of it here is one formula and one sleep. stamina (on tenacity) has both backends, but it
would be two more packages to install, a tenth of a second of CPU for every five thousand completions that succeed, and
a switch for the whole process (`stamina.set_active`) that others may turn.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from aswarm._errors import CompletionError
from aswarm._rate_limits.policy import backoff
from aswarm._run.loop import Handlers
from aswarm._wire.accumulator import Accumulator, whole_message
from aswarm._wire.request import CompletionHandler, CompletionRequest
from aswarm._wire.retry_after import is_rate_limited

logger = logging.getLogger("aswarm")

# Seconds before the second attempt; doubled for each one more, up to the longest.
FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0


class Attempts:
    """The attempts of one item, at most `most` for one completion.

    `made`: 0 until its run has begun, then 1, and one more whenever a completion is asked for again.
    """

    __slots__ = ("_index", "_most", "made")

    def __init__(self, index: int, most: int) -> None:
        self._index = index
        self._most = most
        self.made = 0

    def doors(self, doors: Handlers) -> Handlers:
        """The same doors, of which the first one asks again."""
        self.made = 1
        return Handlers(partial(self._complete, doors.complete), doors.call_tool)

    async def _complete(
        self, complete: CompletionHandler, request: CompletionRequest
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        request = replace(request, max_retries=0)
        received: list[Mapping[str, Any]] = []
        attempt = 1
        while True:
            received.clear()
            try:
                await _receive(complete(request), received)
            except CompletionError as error:
                is_given_up = is_rate_limited(error) and not received
                if not error.retryable or is_given_up or attempt == self._most:
                    raise
                attempt += 1
                seconds = wait_before(attempt)
                logger.info("item %d: asking again in %.1f s after: %s", self._index, seconds, error)
            else:
                break
            await anyio.sleep(seconds)
            self.made += 1
        for chunk in received:
            yield chunk


def wait_before(attempt: int) -> float:
    """Seconds to wait before the second and later attempts: doubled each time, and between half and all of it.

    The half that is left to chance keeps those that failed together from coming back together.
    """
    return backoff(attempt - 1, FIRST_WAIT, LONGEST_WAIT, random.uniform(0.0, 0.5))  # noqa: S311 - nothing secret


async def _receive(chunks: AsyncGenerator[Mapping[str, Any], None], received: list[Mapping[str, Any]]) -> None:
    """Take all chunks of a completion. Raises what the run would raise on reading them."""
    async with aclosing(chunks):
        async for chunk in chunks:
            received.append(chunk)  # noqa: PERF401 - whoever asks has what came before a failure
    if len(received) != 1 or whole_message(received[0]) is None:
        accumulator = Accumulator()
        for chunk in received:
            accumulator.feed(chunk)
        accumulator.finish()

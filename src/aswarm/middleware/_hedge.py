"""Hedged requests, as middleware: a stream that starts slowly is requested once more, and the faster stream is used.

See Dean and Barroso, "The Tail at Scale" (2013).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from typing import Any

import anyio
from anyio.abc import TaskGroup

from aswarm._runtime.backend import HiddenGenerators, raise_if_own
from aswarm._values.errors import ConfigurationError
from aswarm._values.json import is_array, is_object
from aswarm._values.usage import Usage
from aswarm.extensions import CompletionRequest, Handlers, Middleware, RunInfo, estimated_tokens

from ._retry import checked

logger = logging.getLogger("aswarm")

# With one of these settings, the provider stores data or searches the web. A request with such a setting is not sent twice.
_KEPT = ("store", "background", "conversation", "previous_response_id", "web_search_options")
_COUNTED = 200
# With the 95th percentile, about 5 % more requests are sent (Dean and Barroso). At least 20 waits are needed to estimate it.
_LEAST = 20
_PERCENTILE = 0.95


def hedge(*, after_seconds: float | None = None, share: float = 0.05) -> Middleware:
    """Return middleware that requests a slow stream once more, and uses the stream whose content arrives first.

    The other stream is closed at once. For this stream, the usage of the run includes an estimate of the prompt tokens. The
    tokens that the model may have written are unknown, and not counted. A chunk that has only a role does not count as content.

    The time without content starts when the request is sent. The wait for rate limits and a pause after a 429 do not count.
    During a pause, no second request is sent. But outside of batches, and without rate limits, the client itself waits after a
    429. This wait does count.

    No second request is sent if the answer is not a stream, or if the request has a tool that the provider executes. The same
    is true if the provider stores data for the request (`store`, `previous_response_id`, `conversation`, `background`).

    Args:
        after_seconds: Seconds without content before the second request. None: the 95th percentile of the last 200 streams of
            this middleware. Then the first 20 streams get no second request.
        share: The maximal share of streams that are requested twice, from 0 to 1. Above 0, the first slow stream is
            always requested twice.

    Raises:
        ConfigurationError: If `after_seconds` is not a positive number, or `share` is not between 0 and 1.
    """
    is_number = isinstance(after_seconds, int | float)
    if after_seconds is not None and not (is_number and after_seconds > 0):
        raise ConfigurationError(f"after_seconds must be a number above 0, or None, not {after_seconds!r}")
    if not (isinstance(share, int | float) and 0 <= share <= 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"share must be a number from 0 to 1, not {share!r}")
    policy = HedgePolicy(after_seconds, share)

    def wrap(handlers: Handlers) -> Handlers:
        def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            may_repeat = request.stream and _is_repeatable(request.body)
            return _hedged(handlers, request, policy) if may_repeat else handlers.complete(request)

        return replace(handlers, complete=complete)

    return wrap


class HedgePolicy:
    """Decides when a stream is requested once more. It never waits, and never reads a clock."""

    def __init__(self, after: float | None, share: float) -> None:
        self._after = after
        self._share = share
        self._streams = self._hedged = 0
        self._waits: deque[float] = deque(maxlen=_COUNTED)

    def start(self) -> float | None:
        """Count a stream. Return the seconds without content before a second request, or None for no second request."""
        self._streams += 1
        if self._after is not None or len(self._waits) < _LEAST:
            return self._after
        waits = sorted(self._waits.copy())  # copy first, because another thread may append meanwhile
        return waits[int(_PERCENTILE * len(waits))]

    def claim(self) -> bool:
        """Return whether the second request may be sent, and count it."""
        may_send = self._share > 0 and self._hedged < max(1, int(self._share * self._streams))
        self._hedged += may_send
        return may_send

    def note(self, seconds: float) -> None:
        """Record the seconds from sending the first request until one of the two requests had content."""
        self._waits.append(seconds)


def _is_repeatable(body: Mapping[str, Any]) -> bool:
    extra = body.get("extra_body")
    settings = {**body, **extra} if is_object(extra) else body
    tools: Any = settings.get("tools")
    return not any(settings.get(key) for key in _KEPT) and all(
        is_object(tool) and tool.get("type") == "function" for tool in (tools if is_array(tools) else ())
    )


class _Attempt:
    """One of the two requests.

    `has_started`: whether the request was handed to the inner handlers. `sent_at`: the time of sending, or None while it is not
    sent, because it waits for rate limits.
    """

    def __init__(self, handlers: Handlers, request: CompletionRequest) -> None:
        self.has_started = False
        self.sent_at: float | None = anyio.current_time()
        self.error: BaseException | None = None
        self._sent = anyio.Event()
        self._sent.set()
        self._first: Any = None
        request = replace(request.copy(), on_sending=self._note)
        self._chunks = checked(handlers.complete(request), stream=True)

    def _note(self, is_sent: bool) -> None:
        self.sent_at = anyio.current_time() if is_sent else None
        if is_sent:
            self._sent.set()
        elif self._sent.is_set():
            self._sent = anyio.Event()

    async def wait_after_sending(self, seconds: float) -> None:
        """Wait until this number of seconds has passed since the request was sent, without a pause in between."""
        sent_at = None
        while sent_at is None or sent_at != self.sent_at:
            await self._sent.wait()
            sent_at = self.sent_at
            await anyio.sleep_until((sent_at or 0.0) + seconds)

    async def read_first(self) -> None:
        """Read until there is content. A failure is saved as `error`; only a cancellation of this task is raised."""
        self.has_started = True
        try:
            self._first = await HiddenGenerators(anext(self._chunks, None))
        except anyio.get_cancelled_exc_class() as error:
            await raise_if_own(error)
            self.error = error
        except BaseException as error:  # noqa: BLE001 - raised to the run, unless the other request has content
            self.error = error

    async def chunks(self) -> AsyncGenerator[Mapping[str, Any], None]:
        yield self._first  # never None: `checked` raises for an answer without a chunk
        async for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        await self._chunks.aclose()


class _Race:
    """The requests for one stream. `winner`: the request that had content first, or None if all requests have failed."""

    def __init__(self, handlers: Handlers, request: CompletionRequest, policy: HedgePolicy) -> None:
        self.winner: _Attempt | None = None
        self.attempts = [_Attempt(handlers, request)]
        self._handlers = handlers
        self._request = request
        self._policy = policy
        self._open = 1
        self._group: TaskGroup

    async def run(self) -> None:
        after = self._policy.start()
        first = self.attempts[0]
        async with anyio.create_task_group() as self._group:
            self._group.start_soon(self._read, first)
            if after is not None:
                self._group.start_soon(self._start_second, after)
        if self.winner is not None and first.sent_at is not None:
            self._policy.note(anyio.current_time() - first.sent_at)

    async def _read(self, attempt: _Attempt) -> None:
        await attempt.read_first()
        self._open -= 1
        is_late = self.winner is not None
        if attempt.error is None and not is_late:
            self.winner = attempt
        if self.winner is not None or not self._open:
            self._group.cancel_scope.cancel()
        # If both requests have content in one step of the event loop, the cancellation is too late to close the second one.
        if is_late:
            with suppress(Exception):  # the run has an answer, so a failure of the other request does not matter
                await attempt.aclose()

    async def _start_second(self, after: float) -> None:
        await self.attempts[0].wait_after_sending(after)
        # In the same step of the event loop, the first request may have got content, or have failed.
        if self._open and self.winner is None and self._policy.claim():
            run = self._handlers.run
            logger.info("requesting a stream again, because no content came in %.1f s", after, extra=run.log_fields)
            # The second request is only an addition to the first, so the client need not retry it.
            self.attempts.append(_Attempt(self._handlers, replace(self._request, max_retries=0)))
            self._open += 1
            self._group.start_soon(self._read, self.attempts[-1])

    def charge(self, run: RunInfo) -> None:
        """Add the prompt of a request that was sent, but closed without an answer, to the usage of the run."""
        body = self._request.body
        for attempt in self.attempts:
            was_sent = attempt.has_started and attempt.sent_at is not None
            if attempt is not self.winner and attempt.error is None and was_sent:
                tokens = estimated_tokens(body)
                # Another client of a `fallback` may not have the model of the run.
                model = body["model"] if self._request.source is None else None
                run.add_usage(Usage(prompt_tokens=tokens, total_tokens=tokens, requests=1), model)


async def _hedged(
    handlers: Handlers, request: CompletionRequest, policy: HedgePolicy
) -> AsyncGenerator[Mapping[str, Any], None]:
    race = _Race(handlers, request, policy)
    async with AsyncExitStack() as stack:
        try:
            await race.run()
        finally:
            for attempt in race.attempts:
                stack.push_async_callback(attempt.aclose)
        race.charge(handlers.run)
        if race.winner is None:  # all requests have failed: raise the error of the first request
            raise next(attempt.error for attempt in race.attempts if attempt.error is not None)
        async with aclosing(race.winner.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

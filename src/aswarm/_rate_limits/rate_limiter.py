"""The rate limiter of a swarm: middleware that sends each request at the time that the policy decides.

If the server rejects a request because of rate limits, the request is retried at its old position in the queue. After two
rejections, it is retried behind a few other requests. The run gets the error only if all retries fail. With limits, the client
itself does not retry, because a rejection must pause all requests at once. This module also retries in place of the client
after a lost connection or a 5xx, with the number of retries that the client allows.

In one event loop, requests are sent in the order of their arrival. Event loops are independent, so that a blocked loop does not
block another loop. While the consumer handles a chunk, no cancel scope is open (PEP 789).
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import threading
from bisect import insort
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import anyio

from aswarm._run.handlers import Handlers, Middleware
from aswarm._run.run_info import RunInfo
from aswarm._runtime import clocks
from aswarm._runtime.backend import PerLoop, current_loop, scheduler
from aswarm._values.errors import SDK_BACKOFF, CompletionError, ConfigurationError, StreamInterrupted, classify, give_up
from aswarm._wire.accumulator import provider_error
from aswarm._wire.failures import is_retryable_status
from aswarm._wire.request import CompletionRequest, CompletionSource

from .adaptive import AdaptiveLimit
from .policy import MINUTE, Admission, RateLimits, RatePolicy, Rejections
from .tokens import TokenEstimate, latest_report, size_of, usage_of

logger = logging.getLogger("aswarm")

# A request with several rejections waits behind this number of waiting requests.
_YIELDS_TO = 20
_LONG_PAUSE = 60.0  # seconds; a longer pause is logged as a warning


@dataclass(slots=True)
class _Pending:
    """One request with all its attempts. `number`: its position in the queue. `retries`: the retries that the client allows."""

    number: int
    body: Mapping[str, Any]
    size: int
    retries: int
    run: RunInfo
    rejections: Rejections = field(default_factory=Rejections)
    failures: int = 0
    has_started: bool = False
    admission: Admission | None = None  # of the request that is in flight


@dataclass(slots=True, eq=False)
class Waiter:
    """One waiting request. The lowest number is first. With equal numbers, the earlier request is first."""

    number: int
    wake: anyio.Event = field(default_factory=anyio.Event)

    def __lt__(self, other: Waiter) -> bool:
        return self.number < other.number


class WaitQueue:
    """The queue of the waiting requests of one event loop. Code outside of this loop may call only `wake`."""

    def __init__(self) -> None:
        self._waiters: list[Waiter] = []
        self._call_soon = scheduler()

    def join(self, number: int) -> Waiter:
        """Add a request, behind all requests with an equal or lower number."""
        waiter = Waiter(number)
        insort(self._waiters, waiter)
        return waiter

    def is_first(self, waiter: Waiter) -> bool:
        return self._waiters[0] is waiter

    def number_behind(self, count: int) -> int:
        """Return the number for a place behind the first `count` requests, or behind all if there are fewer (at least one)."""
        return max(waiter.number for waiter in self._waiters[:count])

    def remove(self, waiter: Waiter) -> bool:
        """Remove the request, and wake the next request. Return whether the queue still has requests."""
        self._waiters.remove(waiter)
        self._wake_first()
        return bool(self._waiters)

    def wake(self) -> None:
        """Wake the first request, from any thread. Raises RuntimeError if the loop is closed."""
        self._call_soon(self._wake_first)

    def _wake_first(self) -> None:
        if self._waiters:
            self._waiters[0].wake.set()


class RateLimiter:
    """The rate limiter, shared by all runs of a swarm.

    `has_limits`: whether the user has set limits. `window`: the seconds in which an earlier request counts.
    `jitter`: returns a random number from 0 to 1.
    """

    window: float = MINUTE

    def __init__(self, limits: RateLimits | None, *, jitter: Callable[[], float] = random.random) -> None:
        if limits is not None and not isinstance(limits, RateLimits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"rate_limits must be RateLimits(...), not {type(limits).__name__}")
        self.has_limits = limits is not None
        most_tokens = None if limits is None else limits.tokens_per_minute
        self._counts_tokens = most_tokens is not None
        self._policy = RatePolicy(limits or RateLimits(), MINUTE, jitter)
        self._jitter = jitter
        self._estimate = TokenEstimate(most_tokens or math.inf)
        self._numbers = itertools.count()
        self._users = 0
        self._adaptive: tuple[AdaptiveLimit, ...] = ()
        self._queues: dict[object, WaitQueue] = {}
        self._offsets = PerLoop(self._offset)
        self._latest = 0.0
        self._made_at = clocks.monotonic()
        # Reentrant, because the garbage collector may close a request while this thread has the lock.
        self._lock = threading.RLock()

    # --- for the swarm ---

    @contextmanager
    def in_use(self, *limits: AdaptiveLimit) -> Generator[None]:
        """During the block, pause all requests after a rejection, even if the user has set no limits.

        `limits`: get the results of the requests.
        """
        with self._lock:
            self._users += 1
            self._adaptive += limits
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._adaptive = tuple(limit for limit in self._adaptive if limit not in limits)

    @contextmanager
    def adaptive(self, start: int = 10, ceiling: int = 1000) -> Generator[AdaptiveLimit]:
        """Do the same as `in_use`. Yield a limit for concurrent runs, which adapts to the results of their requests."""
        limit = AdaptiveLimit(start, ceiling)
        with self.in_use(limit):
            yield limit

    def count_earlier(self, requests: Iterable[tuple[float, int]]) -> None:
        """Count requests of an earlier process, by their age in seconds and their tokens.

        Requests after the creation of this limiter are ignored, because they are already counted.
        """
        now, own_age = self._now(), clocks.monotonic() - self._made_at
        with self._lock:
            self._policy.count_earlier((now - age, tokens) for age, tokens in requests if age > own_age)

    def middleware(self, source: CompletionSource) -> Middleware:
        """Return middleware that delays each request while limits are in use."""

        def wrap(handlers: Handlers) -> Handlers:
            def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
                if request.source is not None:  # another provider, with its own limits
                    return request.source.complete(request)
                # Check at each request, because a batch may start or stop during this run.
                if not (self.has_limits or self._users):
                    return handlers.complete(request)
                return self._limited(handlers, source, request)

            return replace(handlers, complete=complete)

        return wrap

    # --- one request ---

    async def _limited(
        self, handlers: Handlers, source: CompletionSource, request: CompletionRequest
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        allowed: object = getattr(source, "max_retries", 0) if request.max_retries is None else request.max_retries
        retries = allowed if isinstance(allowed, int) else 0
        size = size_of(request.body) if self._counts_tokens else 0
        pending = _Pending(next(self._numbers), request.body, size, retries, handlers.run)
        on_sending: Callable[[bool], None] = request.on_sending or (lambda _: None)
        request = replace(request, max_retries=0, _admit_next=partial(self._admit_next, pending, on_sending))
        while True:
            on_sending(False)
            pending.admission = admission = await self._admitted(pending)
            on_sending(True)
            reported: object = None
            try:
                async with aclosing(handlers.complete(request)) as chunks:
                    async for chunk in chunks:
                        if not pending.has_started:
                            self._answer_started(pending, admission, chunk)
                        if usage := chunk.get("usage"):
                            reported = latest_report(reported, usage)
                        yield chunk
            except CompletionError as error:
                on_sending(False)
                seconds = self._seconds_until_retry(pending, admission, error)
                if seconds is None:
                    raise
            else:
                return
            finally:
                self._finished(pending, reported)
            await anyio.sleep(seconds)

    async def _admit_next(self, pending: _Pending, on_sending: Callable[[bool], None]) -> None:
        """Wait until a further request for the same completion may be sent. Its answer reports the tokens of all of them."""
        admission, pending.admission = pending.admission, None
        assert admission is not None  # noqa: S101 - the completion has a request in flight
        with self._lock:
            self._policy.correct(admission, 0)
            self._policy.finished(admission)
        on_sending(False)
        pending.admission = await self._admitted(pending)
        on_sending(True)

    def _answer_started(self, pending: _Pending, admission: Admission, chunk: Mapping[str, Any]) -> None:
        if error := chunk.get("error"):
            raise provider_error(error)  # some servers send a rejection with status 200
        pending.has_started = True
        with self._lock:
            ends_pause = self._policy.answered(admission)
            for limit in self._adaptive:
                if ends_pause:
                    limit.resumed()
                limit.answered()
        self._wake()

    def _seconds_until_retry(self, pending: _Pending, admission: Admission, error: CompletionError) -> float | None:
        if pending.has_started or isinstance(error, StreamInterrupted):
            return None
        if error.status_code is not None:
            with self._lock:
                self._policy.correct(admission, 0)  # the model did not run
        kind = classify(error)
        if kind == "rate_limited":
            return self._seconds_after_rejection(pending, admission, error)
        if kind == "overloaded":
            with self._lock:
                for limit in self._adaptive:
                    limit.overloaded()
        # Retry only the failures that the SDK would retry. Other temporary failures are for the middleware `retry`.
        may_help = kind == "overloaded" or (kind == "transient" and is_retryable_status(error.status_code))
        if not may_help or pending.failures >= pending.retries:
            return None
        pending.failures += 1
        return SDK_BACKOFF.seconds(pending.failures, self._jitter())

    def _seconds_after_rejection(self, pending: _Pending, admission: Admission, error: CompletionError) -> float | None:
        rejections = pending.rejections
        with self._lock:
            seconds = self._policy.rejected(admission, self._now(), error.retry_after, rejections)
            for limit in self._adaptive if seconds is not None else ():
                limit.paused()
        if seconds is not None:
            level = logging.WARNING if seconds >= _LONG_PAUSE else logging.INFO
            fields = pending.run.log_fields
            logger.log(level, "all runs of this swarm pause for %.1f s: %s", seconds, error, extra=fields)
        if rejections.are_enough:
            give_up(error, pending.run.run_id)
            return None
        if rejections.yields and (queue := self._queues.get(current_loop())):
            pending.number = max(pending.number, queue.number_behind(_YIELDS_TO))
        return rejections.wait

    def _finished(self, pending: _Pending, reported: object) -> None:
        if (admission := pending.admission) is None:  # a further request was cancelled before it was sent
            return
        pending.admission = None
        with self._lock:
            if self._counts_tokens and pending.has_started:
                usage = usage_of(reported)
                self._estimate.learn(pending.size, usage)
                self._policy.correct(admission, usage.total_tokens or admission.tokens)
            self._policy.finished(admission)
        self._wake()

    # --- waiting ---

    async def _admitted(self, pending: _Pending) -> Admission:
        """Wait until the request may be sent. If it is cancelled during the wait, it does not count for the limits."""
        is_free = not self._queues or current_loop() not in self._queues
        if is_free and isinstance(admission := self._admission_or_wait(pending), Admission):
            return admission
        while True:
            if (admitted := await self._turn(pending)) is not None:
                return admitted
            await anyio.sleep(pending.rejections.own_wait(self._now()))

    async def _turn(self, pending: _Pending) -> Admission | None:
        """Wait in the queue. Return None if only this request must wait longer, so that it does not hold up the others."""
        with self._queued(pending.number) as (queue, waiter):
            while True:
                wait = math.inf
                if queue.is_first(waiter):
                    if isinstance(admission := self._admission_or_wait(pending), Admission):
                        return admission
                    wait = admission
                    if pending.rejections.own_wait(self._now()) > wait:
                        return None
                waiter.wake = anyio.Event()
                with anyio.move_on_after(wait):
                    await waiter.wake.wait()

    def _admission_or_wait(self, pending: _Pending) -> Admission | float:
        now = self._now()
        with self._lock:
            # Estimate at each check, because the results of other requests change the estimate.
            tokens = self._estimate.of(pending.body, pending.size) if self._counts_tokens else 0
            wait = self._policy.wait(tokens, now)
            may_be_sent = not (wait or pending.rejections.own_wait(now))
            return self._policy.admit(tokens, now) if may_be_sent else wait

    @contextmanager
    def _queued(self, number: int) -> Generator[tuple[WaitQueue, Waiter], None, None]:
        loop = current_loop()
        with self._lock:
            queue = self._queues.get(loop) or self._queues.setdefault(loop, WaitQueue())
            waiter = queue.join(number)
        try:
            yield queue, waiter
        finally:
            with self._lock:
                if not queue.remove(waiter):
                    self._queues.pop(loop, None)

    def _wake(self) -> None:
        """Wake the first request of each queue. After a new result or token count, this request may be allowed earlier."""
        with self._lock:
            for loop, queue in tuple(self._queues.items()) if self._queues else ():
                try:
                    queue.wake()
                except RuntimeError:  # the loop was closed while requests waited in it
                    self._queues.pop(loop, None)

    # --- time ---

    def _now(self) -> float:
        now = anyio.current_time() + self._offsets.get()
        self._latest = max(self._latest, now)
        return now

    def _offset(self) -> float:
        # Each event loop has its own clock: the clock of trio starts at a random time, and the clock of a test may run ahead.
        # But the policy needs one clock.
        return max(clocks.monotonic(), self._latest) - anyio.current_time()

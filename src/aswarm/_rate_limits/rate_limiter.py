"""The limits of a swarm, for all its runs: middleware that sends each request when it may go.

The policy decides when that is. Here the request waits, and the policy hears of its result. A request that the provider
rejects for its rate goes again, at its old position in the queue (after two rejections, behind a few others), before its
run hears of it. While limits are on, the client does not retry by itself: a rejection must pause all requests at once.
What the client would have retried otherwise (a lost connection, a 5xx) is retried here, as often.

In one event loop requests go in the order in which they came. Between loops there is no order: a loop that is blocked must
not hold up the others. No cancel scope is open while a consumer holds a chunk.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from aswarm._errors import CompletionError, ConfigurationError, StreamInterrupted
from aswarm._run.handlers import Handlers, Middleware, RunInfo
from aswarm._runtime.backend import PerLoop, current_loop
from aswarm._wire.accumulator import provider_error
from aswarm._wire.failures import classify, give_up, is_retryable_status
from aswarm._wire.request import CompletionRequest, CompletionSource

from .adaptive import AdaptiveLimit, RequestObserver
from .backoff import SDK_BACKOFF
from .policy import MINUTE, Admission, RateLimits, RatePolicy, Rejections
from .queue import Waiter, WaitQueue
from .tokens import TokenEstimate, size_of, usage_of, used_tokens

logger = logging.getLogger("aswarm")

# How many waiting requests go before one that is rejected again and again.
_YIELDS_TO = 20
# Seconds. A user who looks at the screen should hear of a longer pause.
_LONG_PAUSE = 60.0


@dataclass(slots=True)
class _Pending:
    """One request, through all its attempts. `number`: its position in the queue; `retries`: as often as the client."""

    number: int
    body: Mapping[str, Any]
    size: int
    retries: int
    run: RunInfo
    rejections: Rejections = field(default_factory=Rejections)
    failures: int = 0
    has_begun: bool = False


class RateLimiter:
    """What all runs of a swarm share to keep its limits. `has_limits`: whether there are any that the user has set.

    `minute`: in seconds, so that tests can be short; `jitter`: returns a random number from 0 to 1.
    """

    def __init__(
        self, limits: RateLimits | None, *, minute: float = MINUTE, jitter: Callable[[], float] = random.random
    ) -> None:
        if limits is not None and not isinstance(limits, RateLimits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"limits must be RateLimits(...), not {type(limits).__name__}")
        self.has_limits = limits is not None
        most_tokens = None if limits is None else limits.tokens_per_minute
        self._counts_tokens = most_tokens is not None
        self._policy = RatePolicy(limits or RateLimits(), minute, jitter)
        self._jitter = jitter
        self._estimate = TokenEstimate(most_tokens or math.inf)
        self._numbers = itertools.count()
        self._users = 0
        self._observers: tuple[RequestObserver, ...] = ()
        self._queues: dict[object, WaitQueue] = {}
        self._offsets = PerLoop(self._offset)
        self._latest = 0.0
        # Reentrant: the garbage collector may close a request while the lock is held.
        self._lock = threading.RLock()

    # --- for the swarm ---

    @contextmanager
    def in_use(self, observer: RequestObserver | None = None) -> Generator[None, None, None]:
        """Until the end of the block: pause all requests at a rejection, also without limits, and tell the observer."""
        added = () if observer is None else (observer,)
        with self._lock:
            self._users += 1
            self._observers = (*self._observers, *added)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._observers = tuple(each for each in self._observers if each is not observer)

    @contextmanager
    def adaptive(self, start: int = 10, ceiling: int = 1000) -> Generator[AdaptiveLimit, None, None]:
        """The same as `in_use`; gives how many runs to hold open at once, which follows the results of their requests."""
        limit = AdaptiveLimit(start, ceiling)
        with self.in_use(limit):
            yield limit

    def middleware(self, source: CompletionSource) -> Middleware:
        """Middleware that sends each request when it may go, while there is something to limit."""

        def wrap(handlers: Handlers) -> Handlers:
            def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
                # Asked for each request: a batch may be opened or left during this run.
                if not (self.has_limits or self._users):
                    return handlers.complete(request)
                return self._limited(handlers, _retries_of(source), request)

            return replace(handlers, complete=complete)

        return wrap

    # --- one request ---

    async def _limited(
        self, handlers: Handlers, retries: int, request: CompletionRequest
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        retries = retries if request.max_retries is None else request.max_retries
        pending = self._pending(request, retries, handlers.run)
        request = replace(request, max_retries=0)
        while True:
            admission = await self._admitted(pending)
            reported: object = None
            try:
                async with aclosing(handlers.complete(request)) as chunks:
                    async for chunk in chunks:
                        if not pending.has_begun:
                            self._begun(pending, admission, chunk)
                        reported = chunk.get("usage") or reported
                        yield chunk
            except CompletionError as error:
                seconds = self._seconds_until_retry(pending, admission, error)
                if seconds is None:
                    raise
            else:
                return
            finally:
                self._ended(pending, admission, reported)
            await anyio.sleep(seconds)

    def _pending(self, request: CompletionRequest, retries: int, run: RunInfo) -> _Pending:
        size = size_of(request.body) if self._counts_tokens else 0
        return _Pending(next(self._numbers), request.body, size, retries, run)

    def _begun(self, pending: _Pending, admission: Admission, chunk: Mapping[str, Any]) -> None:
        if error := chunk.get("error"):
            raise provider_error(error)  # some servers reject a request with status 200
        pending.has_begun = True
        with self._lock:
            self._policy.answered(admission)
            for observer in self._observers:
                observer.answered()
        self._wake()

    def _seconds_until_retry(self, pending: _Pending, admission: Admission, error: CompletionError) -> float | None:
        if pending.has_begun or isinstance(error, StreamInterrupted):
            return None
        if error.status_code is not None:
            with self._lock:
                self._policy.correct(admission, 0)  # the model has not run
        kind = classify(error)
        if kind == "rate_limited":
            return self._seconds_after_rejection(pending, admission, error)
        if kind == "overloaded":
            with self._lock:
                for observer in self._observers:
                    observer.overloaded()
        # Not all that may pass is retried, but what the SDK would retry.
        may_help = kind == "overloaded" or (kind == "transient" and is_retryable_status(error.status_code))
        if not may_help or pending.failures >= pending.retries:
            return None
        pending.failures += 1
        return SDK_BACKOFF.seconds(pending.failures, self._jitter())

    def _seconds_after_rejection(self, pending: _Pending, admission: Admission, error: CompletionError) -> float | None:
        rejections = pending.rejections
        self._rejected(pending, admission, error)
        if rejections.are_enough:
            give_up(error, pending.run.id)
            return None
        if rejections.yields and (queue := self._queues.get(current_loop())):
            pending.number = max(pending.number, queue.number_behind(_YIELDS_TO))
        return rejections.wait

    def _rejected(self, pending: _Pending, admission: Admission, error: CompletionError) -> None:
        now = self._now()
        with self._lock:
            seconds = self._policy.rejected(admission, now, error.retry_after, pending.rejections)
            if seconds is None:
                return
            for observer in self._observers:
                observer.paused()
        level = logging.WARNING if seconds >= _LONG_PAUSE else logging.INFO
        fields = pending.run.log_fields
        logger.log(level, "all runs of this swarm pause for %.1f s: %s", seconds, error, extra=fields)

    def _ended(self, pending: _Pending, admission: Admission, reported: object) -> None:
        with self._lock:
            if self._counts_tokens and pending.has_begun:
                usage = usage_of(reported)
                self._estimate.learn(pending.size, usage)
                self._policy.correct(admission, used_tokens(usage) or admission.tokens)
            self._policy.ended(admission)
        self._wake()

    # --- waiting ---

    async def _admitted(self, pending: _Pending) -> Admission:
        """Wait until the request may go. A request that is cancelled here has used nothing."""
        if not self._queues or current_loop() not in self._queues:
            admission = self._admission_or_wait(pending)
            if isinstance(admission, Admission):
                return admission
        with self._queued(pending.number) as (queue, waiter):
            while True:
                wait = math.inf
                if queue.is_first(waiter):
                    admission = self._admission_or_wait(pending)
                    if isinstance(admission, Admission):
                        return admission
                    wait = admission
                waiter.wake = anyio.Event()
                with anyio.move_on_after(wait):
                    await waiter.wake.wait()

    def _admission_or_wait(self, pending: _Pending) -> Admission | float:
        now = self._now()
        with self._lock:
            # Estimated again each time: while the request waited, others have shown how many tokens they use.
            tokens = self._estimate.of(pending.body, pending.size) if self._counts_tokens else 0
            return self._policy.wait(tokens, now) or self._policy.admit(tokens, now)

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
                if not queue.leave(waiter):
                    self._queues.pop(loop, None)

    def _wake(self) -> None:
        """A request has ended, or uses less than was estimated: the first one of each queue may go sooner."""
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
        # Each loop has its own clock (trio's begins at a random time, a test's may run ahead); the policy needs one.
        return max(time.monotonic(), self._latest) - anyio.current_time()


def _retries_of(source: CompletionSource) -> int:
    retries: object = getattr(source, "max_retries", 0)
    return retries if isinstance(retries, int) else 0

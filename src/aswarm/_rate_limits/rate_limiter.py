"""The limits of a swarm, for all its runs: wraps the first door, so that each request waits for its turn.

`Pace` decides when a request may go; here it is waited for, and what becomes of the request is told. A request that the
provider refuses for its rate goes again, at its old place (if refused again, behind a few others), before anybody has
seen anything of it. While limits are on, the client does not try again by itself: a refusal must pause everybody at
once. What it would have tried again otherwise (a lost connection, a 5xx) is tried again here, as often.

In one event loop requests go in the order in which they came. Between loops there is no order: a loop that stands still
shall not hold up the others. No cancel scope is open while a consumer holds a chunk.
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

from aswarm._errors import CompletionError, ConfigurationError, StreamInterrupted, is_retryable_status
from aswarm._run.handlers import CompletionHandler, Handlers, Middleware
from aswarm._runtime.backend import PerLoop, clock, current_loop
from aswarm._wire.accumulator import provider_error
from aswarm._wire.request import CompletionRequest, CompletionSource
from aswarm._wire.retry_after import is_overload, is_permanent, is_rate_limited

from .adaptive import AdaptiveLimit, RequestObserver
from .policy import MINUTE, Pace, Place, RateLimits, Refusals, backoff
from .queue import Line, Waiter
from .tokens import TokenEstimate, size_of, usage_of, used_tokens

logger = logging.getLogger("aswarm")

# How many of those who wait go before one that is refused again and again.
_LET_BY = 20
# What the openai SDK waits, in seconds: the first time, and at most.
_SDK_WAITS = (0.5, 8.0)
# A pause that somebody who looks at the screen should hear of, in seconds.
_LONG_PAUSE = 60.0


@dataclass(slots=True)
class _Turn:
    """One request, through all its attempts. `number`: its place among those that wait."""

    number: int
    body: Mapping[str, Any]
    size: int
    retries: int
    refusals: Refusals = field(default_factory=Refusals)
    failures: int = 0
    has_begun: bool = False


class RateLimiter:
    """What all runs of a swarm share to keep its limits. `minute`: seconds, to make tests short; `jitter`: 0 to 1."""

    def __init__(
        self, limits: RateLimits | None, *, minute: float = MINUTE, jitter: Callable[[], float] = random.random
    ) -> None:
        if limits is not None and not isinstance(limits, RateLimits):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"limits must be RateLimits(...), not {type(limits).__name__}")
        self._has_limits = limits is not None
        most_tokens = None if limits is None else limits.tokens_per_minute
        self._counts_tokens = most_tokens is not None
        self._pace = Pace(limits or RateLimits(), minute, jitter)
        self._jitter = jitter
        self._estimate = TokenEstimate(most_tokens or math.inf)
        self._numbers = itertools.count()
        self._users = 0
        self._feedback: tuple[RequestObserver, ...] = ()
        self._lines: dict[object, Line] = {}
        self._clocks = PerLoop(self._clock)
        self._latest = 0.0
        # Reentrant: what is collected as garbage inside it may tell of its end.
        self._lock = threading.RLock()

    # --- for the front ---

    @contextmanager
    def in_use(self, feedback: RequestObserver | None = None) -> Generator[None, None, None]:
        """Pace all requests from here to the end of the block, also without limits, and tell `feedback` of them."""
        heard = () if feedback is None else (feedback,)
        with self._lock:
            self._users += 1
            self._feedback = (*self._feedback, *heard)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._feedback = tuple(each for each in self._feedback if each is not feedback)

    @contextmanager
    def adaptive(self, start: int = 10, ceiling: int = 1000) -> Generator[AdaptiveLimit, None, None]:
        """As `in_use`; gives how many runs to hold open at once, which follows what becomes of their requests."""
        limit = AdaptiveLimit(start, ceiling)
        with self.in_use(limit):
            yield limit

    def middleware(self, source: CompletionSource) -> Middleware:
        """Middleware that sends each request in its turn while there is something to limit."""

        def wrap(handlers: Handlers) -> Handlers:
            def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
                # Asked for each request: a batch that is opened or left meanwhile concerns this run too.
                if not (self._has_limits or self._users):
                    return handlers.complete(request)
                return self._paced(handlers.complete, _retries_of(source), request)

            return replace(handlers, complete=complete)

        return wrap

    # --- one request ---

    async def _paced(
        self, complete: CompletionHandler, retries: int, request: CompletionRequest
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        turn = self._turn(request, retries if request.max_retries is None else request.max_retries)
        request = replace(request, max_retries=0)
        while True:
            place = await self._admitted(turn)
            reported: object = None
            try:
                async with aclosing(complete(request)) as chunks:
                    async for chunk in chunks:
                        if not turn.has_begun:
                            self._begun(turn, place, chunk)
                        reported = chunk.get("usage") or reported
                        yield chunk
            except CompletionError as error:
                seconds = self._seconds_until_retry(turn, place, error)
                if seconds is None:
                    raise
            else:
                return
            finally:
                self._ended(turn, place, reported)
            await anyio.sleep(seconds)

    def _turn(self, request: CompletionRequest, retries: int) -> _Turn:
        size = size_of(request.body) if self._counts_tokens else 0
        return _Turn(next(self._numbers), request.body, size, retries)

    def _begun(self, turn: _Turn, place: Place, chunk: Mapping[str, Any]) -> None:
        if error := chunk.get("error"):
            raise provider_error(error)  # some say it with a 200
        turn.has_begun = True
        with self._lock:
            self._pace.answered(place)
            for feedback in self._feedback:
                feedback.answered()
        self._wake()

    def _seconds_until_retry(self, turn: _Turn, place: Place, error: CompletionError) -> float | None:
        if turn.has_begun or isinstance(error, StreamInterrupted):
            return None
        if error.status_code is not None:
            with self._lock:
                self._pace.used(place, 0)  # no model has run
        error.retryable = error.retryable and not is_permanent(str(error))  # some say it with a 200
        if is_rate_limited(error):
            self._refused(turn.refusals, place, error)
            if turn.refusals.let_others_by and (line := self._lines.get(current_loop())):
                turn.number = max(turn.number, line.behind(_LET_BY))
            return None if turn.refusals.are_enough else turn.refusals.wait
        may_help = error.retryable and (error.status_code is None or is_retryable_status(error.status_code))
        if may_help and is_overload(error):
            with self._lock:
                for feedback in self._feedback:
                    feedback.overloaded()
        if not may_help or turn.failures >= turn.retries:
            return None
        turn.failures += 1
        return backoff(turn.failures, *_SDK_WAITS, self._jitter() / 4)

    def _refused(self, past: Refusals, place: Place, error: CompletionError) -> None:
        now = self._now()
        with self._lock:
            seconds = self._pace.refused(place, now, error.retry_after, past)
            if seconds is None:
                return
            for feedback in self._feedback:
                feedback.paused(seconds)
        level = logging.WARNING if seconds >= _LONG_PAUSE else logging.INFO
        logger.log(level, "all runs of this swarm pause for %.1f s: %s", seconds, error)

    def _ended(self, turn: _Turn, place: Place, reported: object) -> None:
        with self._lock:
            if self._counts_tokens and turn.has_begun:
                usage = usage_of(reported)
                self._estimate.learn(turn.size, usage)
                self._pace.used(place, used_tokens(usage) or place.tokens)
            self._pace.lost(place)
        self._wake()

    # --- waiting ---

    async def _admitted(self, turn: _Turn) -> Place:
        """Wait until the request may go. Whoever is cancelled here has taken nothing."""
        if not self._lines or current_loop() not in self._lines:
            place = self._place_or_wait(turn)
            if isinstance(place, Place):
                return place
        with self._in_line(turn.number) as (line, waiter):
            while True:
                wait = math.inf
                if line.is_first(waiter):
                    place = self._place_or_wait(turn)
                    if isinstance(place, Place):
                        return place
                    wait = place
                waiter.wake = anyio.Event()
                with anyio.move_on_after(wait):
                    await waiter.wake.wait()

    def _place_or_wait(self, turn: _Turn) -> Place | float:
        now = self._now()
        with self._lock:
            # Anew each time: while it waited, others have shown how much they use.
            tokens = self._estimate.of(turn.body, turn.size) if self._counts_tokens else 0
            return self._pace.wait(tokens, now) or self._pace.go(tokens, now)

    @contextmanager
    def _in_line(self, number: int) -> Generator[tuple[Line, Waiter], None, None]:
        loop = current_loop()
        with self._lock:
            line = self._lines.get(loop) or self._lines.setdefault(loop, Line())
            waiter = line.join(number)
        try:
            yield line, waiter
        finally:
            with self._lock:
                if not line.leave(waiter):
                    self._lines.pop(loop, None)

    def _wake(self) -> None:
        """Something has ended, or is smaller than it was thought: whoever is first may go sooner."""
        with self._lock:
            for loop, line in tuple(self._lines.items()) if self._lines else ():
                try:
                    line.wake()
                except RuntimeError:  # the loop was closed over those who waited
                    self._lines.pop(loop, None)

    # --- time ---

    def _now(self) -> float:
        read, offset = self._clocks.get()
        now = read() + offset
        self._latest = max(self._latest, now)
        return now

    def _clock(self) -> tuple[Callable[[], float], float]:
        # Loops have clocks of their own (trio's begins anywhere, a test's may run ahead); what is shared needs one.
        read = clock()
        return read, max(time.monotonic(), self._latest) - read()


def _retries_of(source: CompletionSource) -> int:
    retries: object = getattr(source, "max_retries", 0)
    return retries if isinstance(retries, int) else 0

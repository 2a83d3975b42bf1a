"""Event loops of a universe: asyncio's own loop with a virtual clock, and with the real clock for the confirmation.

Ready callbacks run in the order of `call_soon`, and timers in the order of their times, because asyncio does the same. The
choices are the times of arrivals (I/O, ends of worker threads), the order of simultaneous arrivals, and stalls of the loop.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, TypeAlias

_STEP = 1e-5  # seconds of one iteration, so that a program that waits for a deadline reaches it
_MOST_STEPS = 1_000_000
Arrival: TypeAlias = tuple[float, int, asyncio.Handle]


class Deadlock(Exception):  # noqa: N818 - named after the event
    """No callback, no timer and no arrival is left, and the program has not ended."""


class Endless(Exception):  # noqa: N818 - named after the event
    """The program did not end within a million iterations of the loop."""


class UniverseLoop(asyncio.BaseEventLoop):
    """An event loop with a virtual clock. It waits for nothing: `select` moves the clock to the next timer or arrival.

    `draw`: `draw(name, below)` returns the choice of this universe, a number from 0.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self, draw: Callable[[str, int], int]) -> None:
        super().__init__()
        self._selector = self  # asyncio asks it for arrivals, as it asks a selector
        self._clock_resolution = 1e-9
        self._draw = draw
        self._now = 0.0
        self._steps = 0
        self._numbers = count()
        self._arrivals: list[Arrival] = []
        self.reported: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.reported.append(context))

    def time(self) -> float:
        """Return the virtual time in seconds; a universe starts at 0."""
        return self._now

    def arrive(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        """Call a function after a delay, as the selector does for I/O."""
        handle = asyncio.Handle(callback, args, self)
        heapq.heappush(self._arrivals, (self._now + delay, next(self._numbers), handle))

    def call_in_thread(self, before: float, work: Callable[[], Any], after: float) -> asyncio.Future[Any]:
        """Call a function on this loop after a delay, as if in a thread, and return the future of its result."""
        future: asyncio.Future[Any] = self.create_future()
        self.arrive(before, self._enter, future, work, after)
        return future

    def _enter(self, future: asyncio.Future[Any], work: Callable[[], Any], after: float) -> None:
        try:
            finish = partial(future.set_result, work())
        except StopIteration as error:  # a future refuses it
            finish = partial(future.set_exception, RuntimeError(repr(error)))
        except BaseException as error:  # noqa: BLE001 - raised in the waiting task
            finish = partial(future.set_exception, error)
        self.arrive(after, lambda: None if future.done() else finish())

    def run_in_executor(self, executor: object, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]  # noqa: ARG002
        """Call a function on this loop, at a drawn time. There are no threads in a universe."""
        before, after = self._draw("executor starts", 2), self._draw("executor ends", 2)
        return self.call_in_thread(before / 1000, partial(func, *args), after / 1000)

    def select(self, timeout: float | None) -> list[asyncio.Handle]:
        """Return the arrivals up to the next timer. Raises Deadlock if nothing can happen any more."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise Endless(f"the program did not end in {_MOST_STEPS} iterations, at {self._now:.3f} s")
        self._now += _STEP
        if timeout is None and not self._arrivals:
            raise Deadlock(f"nothing can happen any more, at {self._now:.3f} s")
        if timeout != 0:
            timer = float("inf") if timeout is None else self._now + timeout
            arrival = self._arrivals[0][0] if self._arrivals else timer
            self._now = max(self._now, min(timer, arrival)) + (0.0, 0.0, 0.0, 0.001)[self._draw("stall", 4)]
        return self._due()

    def _due(self) -> list[asyncio.Handle]:
        due: list[asyncio.Handle] = []
        while self._arrivals and self._arrivals[0][0] <= self._now:
            due.append(heapq.heappop(self._arrivals)[2])
        first = self._draw("order", len(due)) if len(due) > 1 else 0
        return due[first:] + due[:first]

    def _process_events(self, event_list: list[asyncio.Handle]) -> None:
        self._ready.extend(event_list)

    def _write_to_self(self) -> None:
        """Do nothing: no other thread wakes this loop."""

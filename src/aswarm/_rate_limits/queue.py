"""The queue of the requests that wait in one event loop. Decides the order, never how long a request waits."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

import anyio

from aswarm._runtime.backend import scheduler


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits. A lower number comes first; of equal numbers, the one that came first."""

    number: int
    wake: anyio.Event = field(default_factory=anyio.Event)

    def __lt__(self, other: Waiter) -> bool:
        return self.number < other.number


class WaitQueue:
    """The waiting requests of one event loop, in the order in which they go. Only `wake` may be called from elsewhere."""

    def __init__(self) -> None:
        self._waiters: list[Waiter] = []
        self._call_soon = scheduler()

    def join(self, number: int) -> Waiter:
        """Wait behind all requests whose number is not higher."""
        waiter = Waiter(number)
        insort(self._waiters, waiter)
        return waiter

    def is_first(self, waiter: Waiter) -> bool:
        """Whether this request is the next to go."""
        return self._waiters[0] is waiter

    def number_behind(self, count: int) -> int:
        """The number that puts a request behind the first `count` waiters, or behind all. There must be one."""
        return max(waiter.number for waiter in self._waiters[:count])

    def leave(self, waiter: Waiter) -> bool:
        """Remove the request and wake the next one. Returns whether requests are left."""
        self._waiters.remove(waiter)
        self._wake_first()
        return bool(self._waiters)

    def wake(self) -> None:
        """Make the first request ask again; from any thread. Raises RuntimeError if the loop is gone."""
        self._call_soon(self._wake_first)

    def _wake_first(self) -> None:
        if self._waiters:
            self._waiters[0].wake.set()

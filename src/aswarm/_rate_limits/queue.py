"""The line of those who wait for their turn in one event loop. Decides who is first, never how long anybody waits."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

import anyio

from aswarm._runtime.backend import scheduler


@dataclass(slots=True, eq=False)
class Waiter:
    """One who waits; of the lower number, before others, and of the same, behind those who came before."""

    number: int
    wake: anyio.Event = field(default_factory=anyio.Event)

    def __lt__(self, other: Waiter) -> bool:
        return self.number < other.number


class Line:
    """Those who wait in one event loop, the first to go in front. Used in that loop only, but for `wake`."""

    def __init__(self) -> None:
        self._waiting: list[Waiter] = []
        self._call_soon = scheduler()

    def join(self, number: int) -> Waiter:
        """Take a place; those with a lower number are in front."""
        waiter = Waiter(number)
        insort(self._waiting, waiter)
        return waiter

    def is_first(self, waiter: Waiter) -> bool:
        """Whether nobody is in front."""
        return self._waiting[0] is waiter

    def behind(self, others: int) -> int:
        """The number with which one would be behind so many of those who wait, or behind all of them; 0 without any."""
        return max((waiter.number for waiter in self._waiting[:others]), default=0)

    def leave(self, waiter: Waiter) -> bool:
        """Whether anybody is left."""
        self._waiting.remove(waiter)
        self._wake_first()
        return bool(self._waiting)

    def wake(self) -> None:
        """Let the first ask again; from any thread. Raises RuntimeError where the loop is gone."""
        self._call_soon(self._wake_first)

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].wake.set()

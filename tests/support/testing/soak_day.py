"""The day of a soak: its clock, its load, and the actors that come and go at random.

A day has three periods of eight hours, each with a quiet and a busy time.
"""

from __future__ import annotations

import asyncio
import math
import random
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from tests.support.testing.soak_verdict import DAY

PERIOD = 8.0  # hours
_QUIETEST = 0.2  # of the load of the busiest moment
_MOST_AT_ONCE = 60


class Day:
    """The day. `hour`: the seconds of an hour. `counts`: what happened. `faults`: the errors that no actor expects."""

    def __init__(self, minutes: float, rand: random.Random) -> None:
        self.hour = minutes * 60 / DAY
        self.rand = rand
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._start = asyncio.get_running_loop().time()

    @property
    def now(self) -> float:
        """The hour of the day."""
        return (asyncio.get_running_loop().time() - self._start) / self.hour

    @property
    def is_over(self) -> bool:
        """Whether clients come no more."""
        return self.now >= DAY

    @property
    def load(self) -> float:
        """The load, from 0.2 to 1."""
        return _QUIETEST + (1 - _QUIETEST) * (1 - math.cos(2 * math.pi * self.now / PERIOD)) / 2

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.rand.random() < probability

    async def arrivals(self, per_second: Mapping[str, tuple[float, Callable[[], Awaitable[object]]]]) -> None:
        """Start actors at random moments until the day is over, and wait for their ends. `per_second`: at the busiest moment."""
        async with asyncio.TaskGroup() as group:
            for name, (rate, actor) in per_second.items():
                group.create_task(self._arrive(name, rate, actor), name=f"arrivals of {name}")

    async def _arrive(self, name: str, rate: float, actor: Callable[[], Awaitable[object]]) -> None:
        at_once = asyncio.Semaphore(_MOST_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(min(self.rand.expovariate(rate), max(0, DAY - self.now) * self.hour))
                if self.is_over:
                    return
                if not self.chance(self.load):
                    continue
                await at_once.acquire()
                group.create_task(self._act(name, actor, at_once), name=name)

    async def _act(self, name: str, actor: Callable[[], Awaitable[object]], at_once: asyncio.Semaphore) -> None:
        try:
            await actor()
            self.counts[name] += 1
        except Exception as error:
            self.fault(f"{name}: {type(error).__name__}: {error}")
            if self.faults.total() <= 3:
                traceback.print_exc()
        finally:
            at_once.release()

    def fault(self, text: str) -> None:
        """Count a fault."""
        self.faults[text[:300]] += 1

    async def hourly(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do this each hour, until cancelled."""
        while True:
            await asyncio.sleep(self.hour)
            try:
                await work()
            except Exception as error:
                self.fault(f"hourly: {type(error).__name__}: {error}")
                traceback.print_exc()

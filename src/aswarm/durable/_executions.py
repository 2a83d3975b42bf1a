"""The runs that this process executes: from the moment when the engine gives one out to its end, or until it is left.

Decides what a process keeps of a run that it executes, and when it gives a run to the others.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aswarm.serve._live import LiveRun

from ._attempt import RunAttempt
from ._failover import GAP
from ._log import ManyDeaths, Taken

if TYPE_CHECKING:
    from ._durable_runs import DurableRuns

logger = logging.getLogger("aswarm")
# ruff: noqa: SLF001 - it is a part of `DurableRuns`

_LOOK_EVERY = 0.1


class Executions:
    """Executes the runs that the engine gives out, `at_once` of them. `running`: those that are executed now, by their ids."""

    def __init__(self, runs: DurableRuns, at_once: int) -> None:
        self.running: dict[str, LiveRun] = {}
        self._runs = runs
        self._slots = anyio.CapacityLimiter(at_once)
        self._closing: set[str] = set()
        self._last_attempts = anyio.CapacityLimiter(1)

    async def execute(self, run_id: str) -> None:
        """Execute a run. The engine calls this once for each attempt, in a task of its own."""
        async with self._slots:
            try:
                await self._execute(run_id, max(0, self._runs._max_deaths - 2))
            except ManyDeaths:
                # One at a time: a run that kills its process must not use up the last attempt of those beside it.
                async with self._last_attempts:
                    await self._execute(run_id, math.inf)

    async def _execute(self, run_id: str, most_deaths: float) -> None:
        while not self._runs._leases.is_held:  # noqa: ASYNC110 - a lost connection is rare
            await anyio.sleep(_LOOK_EVERY)
        taken: Taken | None = None
        try:
            taken = await self._take(run_id, most_deaths)
        finally:
            if taken is None:
                self.leave(run_id)
        if taken is not None:
            live = self._live_run(taken)
            if taken.cancel is not None:
                live.cancel(taken.cancel)
            if not await self._attempt(taken, live, RunAttempt.execute):
                raise asyncio.CancelledError  # the engine must not take it for the end of the run

    async def close(self, run_id: str, reason: str, error: Exception | None) -> bool:
        """End a run of this process that is not executed: with what it has recorded, and nothing else is done. False for others."""
        runs = self._runs
        if run_id in self.running or run_id in self._closing:
            return False
        self._closing.add(run_id)
        try:
            is_owner = await runs._access.call(runs._log.is_owner, run_id)
            taken = await runs._access.call(runs._log.take, run_id) if is_owner else None
            if taken is None:
                return False
            live = self._live_run(taken)
            live.cancel(reason)
            return await self._attempt(taken, live, partial(RunAttempt.close, error=error))
        finally:
            self._closing.discard(run_id)

    async def _take(self, run_id: str, most_deaths: float) -> Taken | None:
        runs = self._runs
        if runs.draining.is_set:
            await runs._engine.put_back(run_id)
            raise asyncio.CancelledError  # the engine must not take it for the end of the run
        return await runs.insist(lambda: runs._access.call(runs._log.take, run_id, most_deaths))

    def leave(self, run_id: str) -> None:
        """Do not keep a run that was started here as one that runs here; otherwise `drain` would wait for it."""
        if run_id not in self.running and (live := self._runs._live.pop(run_id, None)) is not None:
            live.leave()

    async def _attempt(self, taken: Taken, live: LiveRun, work: Callable[[RunAttempt], Awaitable[None]]) -> bool:
        """Returns whether the run has ended here."""
        runs, run_id = self._runs, taken.record.id
        self.running[run_id] = live
        attempt = RunAttempt(runs, live, taken)
        try:
            await work(attempt)
            if attempt.is_left:
                await self._hand_back(run_id)
        finally:
            if self.running.get(run_id) is live:  # the engine has not given the run out again
                del self.running[run_id]
            if runs._live.get(run_id) is live:  # it has not ended here
                runs._live.pop(run_id)
                live.leave()
            runs._changes.notify()
        return not (attempt.is_left or live.is_fenced)

    def _live_run(self, taken: Taken) -> LiveRun:
        """What readers of this process read the run from: a new one, unless the run was started here just now."""
        live_runs, record = self._runs._live, taken.record
        live = live_runs.get(record.id)
        if live is not None and record.id not in self.running:
            return live
        if live is not None:  # the engine has given the run out again
            live.fence()
            live.leave()
        live = live_runs[record.id] = LiveRun(record)
        live.begin_at(record.last + 1 if taken.attempts == 1 else record.last + 1 + GAP)
        return live

    async def _hand_back(self, run_id: str) -> None:
        """Put a run that this process has left into the queue; the others find it there, once this process has ended."""
        runs = self._runs
        with anyio.CancelScope(shield=True):
            try:
                await runs._access.call(runs._log.hand_back, run_id)
                await runs._engine.put_back(run_id)
            except Exception:  # they take it over like that of a dead process
                logger.exception("the run %s cannot be handed back", run_id, extra={"run_id": run_id, "agent": None})

"""The runs that this process executes: from the moment when it claims one to its end, or until it is left.

Decides when a process claims runs and how many, what it keeps of a run that it executes, and when it gives a run to the others.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aswarm._errors import RunError
from aswarm._run.handlers import NO_RUN
from aswarm._swarm import has_rate_limits
from aswarm.serve._entries import now
from aswarm.serve._live import LiveRun

from ._attempt import RunAttempt
from ._failover import GAP
from ._log import Claim, ManyDeaths, Taken

if TYPE_CHECKING:
    from ._durable_runs import DurableRuns

logger = logging.getLogger("aswarm")
# ruff: noqa: SLF001 - it is a part of `DurableRuns`

_CLAIM_SECONDS = 30  # DBOS of a host may give a claimed run to another process; after that it does not count here
_PAUSE = 0.01
_SECONDS_AFTER_FAILURE = 1.0


class Executions:
    """Claims runs from the queue, and executes them: `at_once` of them.

    `running`: those that are executed now, by their ids.
    """

    def __init__(self, runs: DurableRuns, at_once: int) -> None:
        self.running: dict[str, LiveRun] = {}
        self._runs = runs
        self._at_once = at_once
        self._claimed: dict[str, float] = {}  # runs that are about to begin here: when room was reserved
        self._failed: dict[str, float] = {}  # runs that could not begin here: until when they are left to the others
        self._wake = anyio.Event()
        self._closing: set[str] = set()
        self._last_attempts = anyio.Lock()

    async def warn(self) -> None:
        """Log which runs this process cannot execute, and which limits are its alone."""
        runs = self._runs
        if not self._at_once:
            return
        out_of_reach = runs._log.out_of_reach
        for version, agent, number in await runs._access.call(out_of_reach, runs.version, list(runs.drivers.known)):
            logger.warning(
                "%d runs of the version %r with the agent %r have not ended; they wait for a process of that version with that "
                "agent (this one has the version %r)",
                number, version, agent, runs.version, extra=NO_RUN,
            )  # fmt: skip
        if has_rate_limits(runs.drivers.swarm):
            logger.warning(
                "the RateLimits of the swarm hold for this process alone; give each process its share of them, or limit the "
                "runs of all processes with global_concurrency or starts_per",
                extra=NO_RUN,
            )

    # --- claiming ---

    @property
    def _room(self) -> int:
        """How many more runs this process may claim now."""
        if self._runs.draining.is_set or not self._runs._leases.is_held:
            return 0
        self._forget_old_claims()
        return self._at_once - len(self.running) - len(self._claimed)

    def _forget_old_claims(self) -> None:
        since = anyio.current_time() - _CLAIM_SECONDS
        self._claimed = {run_id: at for run_id, at in self._claimed.items() if at > since}

    def reserve(self, run_id: str) -> bool:
        """Keep room for a run that is about to begin here. Returns False if there is no room."""
        has_room = self._room > 0
        if has_room:
            self._claimed[run_id] = anyio.current_time()
        return has_room

    def is_reserved(self, run_id: str) -> bool:
        """Whether there is room for this run."""
        return run_id in self._claimed

    def release(self, run_id: str) -> None:
        """Do not keep room for this run."""
        self._claimed.pop(run_id, None)

    def look(self) -> None:
        """Look at the queue: there may be a run in it, or room for one."""
        self._wake.set()

    async def claim_all(self) -> None:
        """Claim runs and begin them, without end."""
        runs = self._runs
        while True:
            # With limits of all processes together, a run may be allowed to begin without a change in the queue.
            with anyio.move_on_after(runs._engine_settings.poll_seconds if runs._log.is_limited else math.inf):
                await self._wake.wait()
            self._wake = anyio.Event()
            with runs._logged("the queue of runs cannot be read; another attempt follows"):
                while await self._claim():
                    pass
            await anyio.sleep(_PAUSE)

    async def _claim(self) -> bool:
        runs, room = self._runs, self._room
        if room <= 0:
            return False
        self._failed = {run_id: until for run_id, until in self._failed.items() if until > anyio.current_time()}
        agents, without = list(runs.drivers.known), list(self._failed)
        claims = await runs._access.call(runs._log.claim, room, runs.version, agents, without)
        self._claimed |= dict.fromkeys((claim.run_id for claim in claims), anyio.current_time())
        for claim in claims:
            await self.begin(claim)
        return bool(claims)

    async def leave_lost(self) -> None:
        """Leave the runs that others have taken over, because this process had lost its lock; and take back that it has died."""
        runs = self._runs
        for run_id, live in list(self.running.items()):
            if not await runs._access.call(runs._log.is_owner, run_id):
                await runs._access.call(runs._log.survived, run_id)
                live.fence()

    async def put_back_lost(self) -> None:
        """Put the runs into the queue that the database has given to this process, without telling it so."""
        runs = self._runs
        self._forget_old_claims()
        known = [*self._claimed, *self.running]
        await runs._access.call(runs._log.put_back_claims, now() - _CLAIM_SECONDS * 1000, but=known)
        for run_id in [run_id for run_id in runs._live if run_id not in self.running]:
            if not await runs._access.call(runs._log.is_owner, run_id):  # another process has it, before it began here
                self.leave(run_id)

    async def begin(self, claim: Claim) -> None:
        """Begin a run that this process has claimed, and has room for; put it back into the queue if that fails."""
        runs, run_id = self._runs, claim.run_id
        begin = runs._engine.start if claim.is_first else runs._engine.begin_again
        try:
            if (status := await begin(run_id)) is None:
                return
            self.release(run_id)
            await self.close(
                run_id, error=RunError(f"its workflow has the status {status} in DBOS, and its log has no end")
            )
        except Exception:  # of the database, in the words of any of three packages
            logger.exception("the run %s could not begin; another attempt follows", run_id, extra=_fields(run_id))
            self._failed[run_id] = anyio.current_time() + _SECONDS_AFTER_FAILURE
            await self._put_back(run_id)
        self.leave(run_id)

    async def _put_back(self, run_id: str) -> None:
        """Put a run that this process has left into the queue. Any other process may claim it."""
        with anyio.CancelScope(shield=True):
            try:
                await self._runs._access.call(self._runs._log.put_back, run_id)
            except self._runs._log.errors:  # it is taken over like that of a dead process
                logger.exception("the run %s cannot be put back", run_id, extra=_fields(run_id))

    def leave(self, run_id: str) -> None:
        """Do not keep a run that was started here as one that runs here; otherwise `drain` would wait for it."""
        self.release(run_id)
        if run_id not in self.running and (live := self._runs._live.pop(run_id, None)) is not None:
            live.leave()

    # --- executing ---

    async def execute(self, run_id: str) -> None:
        """Execute a run. The engine calls this once for each attempt, in a task of its own."""
        try:
            await self._execute(run_id, max(0, self._runs._max_deaths - 2))
        except ManyDeaths:
            # One at a time: a run that kills its process must not use up the last attempt of those beside it.
            async with self._last_attempts:
                await self._execute(run_id, math.inf)

    async def _execute(self, run_id: str, most_deaths: float) -> None:
        taken: Taken | None = None
        try:
            taken = await self._take(run_id, most_deaths)
        finally:
            if taken is None:
                self.leave(run_id)
        if taken is None:
            return
        live = self._live_run(taken)
        if taken.cancel is not None:
            live.cancel(taken.cancel)
        work = RunAttempt.execute
        if taken.deaths >= self._runs._max_deaths:
            why = f"{taken.deaths} processes died while they executed it, so it is not executed again"
            logger.error("the run %s has ended: %s", run_id, why, extra=taken.record.log_fields)
            work = partial(RunAttempt.close, error=RunError(why))
        if not await self._attempt(taken, live, work):
            raise asyncio.CancelledError  # the engine must not take it for the end of the run

    async def close(self, run_id: str, reason: str = "", error: Exception | None = None) -> None:
        """End a run of this process that is not executed, for a reason or with an error, and with what it has recorded.

        A run that has begun, and whose agent this process does not have, is left to the others.
        """
        runs = self._runs
        if run_id in self.running or run_id in self._closing or self.is_reserved(run_id):
            return  # an execution that begins now notices by itself that it is to be stopped
        self._closing.add(run_id)
        try:
            agents = list(runs.drivers.known)
            taken = await runs._access.call(runs._log.take_to_close, run_id, agents)
            if taken is not None:
                live = self._live_run(taken)
                live.cancel(reason)
                await self._attempt(taken, live, partial(RunAttempt.close, error=error))
        finally:
            self._closing.discard(run_id)

    async def _take(self, run_id: str, most_deaths: float) -> Taken | None:
        runs = self._runs
        if runs.draining.is_set:
            await self._put_back(run_id)
            raise asyncio.CancelledError  # the engine must not take it for the end of the run
        return await runs.insist(lambda: runs._access.call(runs._log.take, run_id, most_deaths))

    async def _attempt(self, taken: Taken, live: LiveRun, work: Callable[[RunAttempt], Awaitable[None]]) -> bool:
        """Returns whether the run has ended here."""
        runs, run_id = self._runs, taken.record.id
        self.running[run_id] = live
        self.release(run_id)
        attempt = RunAttempt(runs, live, taken)
        try:
            await work(attempt)
            if attempt.is_left:
                await self._put_back(run_id)
        finally:
            if self.running.get(run_id) is live:  # the engine has not given the run out again
                del self.running[run_id]
            if runs._live.get(run_id) is live:  # it has not ended here
                runs._live.pop(run_id)
                live.leave()
            runs._changes.notify()
            self.look()
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


def _fields(run_id: str) -> dict[str, str | None]:
    return {"run_id": run_id, "agent": None}

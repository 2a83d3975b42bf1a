"""What happens to the runs of a process that has died: others take them over, or they fail.

Decides who is responsible for such a run, how often a run that kills its process is executed again, and how a run ends that no
process executes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from aswarm._errors import RunError
from aswarm.serve._log_access import LogAccess
from aswarm.serve._runs import RunRecord

from ._engine import Engine
from ._leases import Leases
from ._log import DurableLog

Close: TypeAlias = Callable[[str, str, Exception | None], Awaitable[bool]]
logger = logging.getLogger("aswarm")

# A process that died may have shown entries to readers that it had not written. The numbers after them are not used again.
GAP = 10_000


class Failover:
    """Looks after the runs that no living process executes. `max_deaths`: see `DurableRuns`.

    `close`: ends a run of this process that is not executed, for a reason or with an error; False if it is no such run.
    """

    def __init__(
        self, log: DurableLog, access: LogAccess, leases: Leases, engine: Engine, max_deaths: int, close: Close
    ) -> None:
        self._log = log
        self._access = access
        self._close = close
        self._leases = leases
        self._engine = engine
        self._max_deaths = max_deaths
        self._unqueued: set[str] = set()

    def enqueue_later(self, run_id: str) -> None:
        """Put a run of this process into the queue at the next look: that has failed now."""
        self._unqueued.add(run_id)

    async def take_over(self) -> bool:
        """Take over the runs of all dead processes. Returns whether one of them is over."""
        for run_id in list(self._unqueued):
            if await self._access.call(self._log.is_recorded, run_id):
                await self._engine.enqueue(run_id)
            self._unqueued.discard(run_id)
        is_over = False
        owners = {*await self._access.call(self._log.owners), *await self._engine.executors()}
        for executor in owners - {self._log.owner}:
            if await self._access.call(self._leases.take, executor):
                try:
                    is_over |= await self._take_over_from(executor)
                finally:
                    await self._access.call(self._leases.drop, executor)
        return is_over

    async def _take_over_from(self, dead: str) -> bool:
        """Take over what a dead process was responsible for, and what it executed. Its lock is held: no other process does."""
        is_over = False
        adopted = await self._access.call(self._log.adopt, dead)
        executed = await self._engine.executed_by(dead)
        for record, deaths in adopted:
            if deaths is None:  # it died before the run was recorded
                await self._access.call(self._log.withdraw, record.id)
            elif deaths >= self._max_deaths:
                await self._fail(record, f"{deaths} processes died while they executed it, so it is not executed again")
            elif record.id in executed or await self._continues(record):
                continue
            is_over = True
            executed.discard(record.id)
        for run_id in executed:
            logger.info("the run %s is taken over", run_id, extra={"run_id": run_id, "agent": None})
            await self._engine.put_back(run_id)
        return is_over

    async def _continues(self, record: RunRecord) -> bool:
        """See that a run that no dead process executed will be executed. False if it has been ended here."""
        status = await self._engine.status(record.id)
        if status is None:
            await self._engine.enqueue(record.id)
        elif status not in ("ENQUEUED", "PENDING"):
            await self._fail(record, f"its workflow has the status {status} in DBOS, and its log has no end")
            return False
        return True

    async def _fail(self, record: RunRecord, why: str) -> None:
        logger.error("the run %s has ended: %s", record.id, why, extra=record.log_fields)
        await self._end(record.id, "failed", RunError(why))

    async def stop(self, run_id: str, reason: str) -> None:
        """Stop a run of this process that is in the queue."""
        await self._end(run_id, reason, None)

    async def _end(self, run_id: str, reason: str, error: Exception | None) -> None:
        if await self._close(run_id, reason, error):
            with suppress(Exception):  # it is in the queue, or was never there
                await self._engine.cancel(run_id)

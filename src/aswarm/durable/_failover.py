"""What happens to the runs of a process that has died: others take them over, or they fail.

Decides who is responsible for such a run, how often a run that kills its process is executed again, and how a run ends that no
process executes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import anyio

from aswarm.serve._changes import Changes
from aswarm.serve._entries import Entry, now
from aswarm.serve._entry_maker import EntryMaker
from aswarm.serve._log import Ending, LogRow
from aswarm.serve._log_access import LogAccess
from aswarm.serve._runs import RunRecord

from ._engine import Engine
from ._leases import Leases
from ._log import DurableLog

logger = logging.getLogger("aswarm")

# A process that died may have shown entries to readers that it had not written. The numbers after them are not used again.
GAP = 10_000


class Failover:
    """Looks after the runs that no living process executes. `max_deaths`: see `DurableRuns`."""

    def __init__(
        self, log: DurableLog, access: LogAccess, changes: Changes, leases: Leases, engine: Engine, max_deaths: int
    ) -> None:
        self._log = log
        self._access = access
        self._changes = changes
        self._leases = leases
        self._engine = engine
        self._max_deaths = max_deaths
        self._looking = anyio.Lock()

    async def take_over(self) -> bool:
        """Take over the runs of all dead processes: they are in the queue then. Returns whether one of them is over."""
        is_over = False
        async with self._looking:  # this process has a lock of another one once, or not at all
            for executor in await self._access.call(self._log.owners):
                with anyio.CancelScope(shield=True):
                    is_over |= await self._take_over_from(executor)
        return is_over

    async def _take_over_from(self, executor: str) -> bool:
        if not await self._access.call(self._leases.take, executor):
            return False
        try:
            return await self.adopt(executor)
        finally:
            await self._access.call(self._leases.drop, executor)
            await self._engine.forget(executor)

    async def adopt(self, dead: str) -> bool:
        """Put the runs of a dead process into the queue. Its lock must be held, so that no other process does the same."""
        is_over = False
        for record, deaths in await self._access.call(self._log.adopt, dead):
            if deaths is None:  # it died before the run was recorded
                await self._access.call(self._log.withdraw, record.id)
            elif deaths >= self._max_deaths:
                why = f"{deaths} processes died while they executed it, so it is not executed again"
                await self.fail(record.id, why)
            else:
                logger.info("the run %s is taken over", record.id, extra=record.log_fields)
                continue
            is_over = True
        return is_over

    async def fail(self, run_id: str, why: str) -> None:
        """End a run of this process that is not executed."""
        record = await self._access.call(self._log.any_record, run_id)
        logger.error("the run %s has ended: %s", record.id, why, extra=record.log_fields)
        error = {"type": "RunError", "message": why, "public_message": "The run ended with an error."}
        await self._close(record, Ending("failed", "RunError"), {"error": error}, "RunFailed")

    async def stop(self, run_id: str, reason: str) -> None:
        """Stop a run of this process that is not executed."""
        record = await self._access.call(self._log.any_record, run_id)
        (last,) = EntryMaker().stopped(reason)
        await self._close(record, Ending("stopped", reason), last.fields, last.type)

    async def _close(self, record: RunRecord, ending: Ending, fields: Mapping[str, Any], kind: str) -> None:
        last = Entry(record.last + 1 + GAP, now(), kind, fields)
        if await self._access.call(self._log.end, record.id, LogRow(last.seq, last.seq, last.to_json()), ending):
            with suppress(Exception):  # DBOS may not know it
                await self._engine.cancel(record.id)
            self._changes.notify()

"""What happens to the runs of a process that has died: others take them over.

Decides which process does it: one at a time, the one that gets the lock of the dead process.
"""

from __future__ import annotations

import logging

import anyio

from aswarm.serve._log_access import LogAccess

from ._engine import Engine
from ._leases import Leases
from ._log import DurableLog

logger = logging.getLogger("aswarm")

# A process that died may have shown entries to readers that it had not written. The numbers after them are not used again.
GAP = 10_000


class Failover:
    """Looks after the runs for which no living process is responsible."""

    def __init__(self, log: DurableLog, access: LogAccess, leases: Leases, engine: Engine) -> None:
        self._log = log
        self._access = access
        self._leases = leases
        self._engine = engine
        self._looking = anyio.Lock()

    async def take_over(self) -> bool:
        """Put the runs of all dead processes into the queue. Returns whether one of them is over."""
        is_over = False
        async with self._looking:  # this process has a lock of another one once, or not at all
            for executor in await self._access.call(self._log.owners):
                with anyio.CancelScope(shield=True):  # the lock that was taken is given up again
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
                is_over = True
            else:
                logger.info("the run %s is taken over", record.id, extra=record.log_fields)
        return is_over

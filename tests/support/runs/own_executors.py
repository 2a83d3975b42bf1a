"""An executor of a user's own: a class that executes queued runs, on public names alone."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AsyncExitStack
from typing import Any

import anyio

from aswarm.runs import Runs
from aswarm.runs.executors import Execution


class OneAfterAnother(Runs):
    """Executes the queued runs of the database, one after another. Each process may do this."""

    async def open(self, stack: AsyncExitStack) -> None:
        self.tasks.start_soon(self._work)

    def enqueue(self, run_id: str) -> Generator[Any, Any, None]:
        yield from ()  # the status "queued" is the queue

    async def recover(self, run_id: str) -> bool:
        if (attempt := await self.take(run_id)) is not None:
            await attempt.release()
        return False

    def stop(self, attempt: Execution) -> None:
        attempt.requeue()

    async def _work(self) -> None:
        while True:
            for record in reversed(await self.records(status="queued")):
                attempt = await self.take(record.id, is_queued=True)
                if attempt is not None and attempt.has_started:
                    await attempt.execute()
            await anyio.sleep(0.01)

"""`Readers` counts the readers of runs, in this process and in other processes. It cancels a run that has no readers."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

import anyio
import anyio.abc

from aswarm._record import log
from aswarm._record.entries import now
from aswarm._sql.database import Database
from aswarm._values.log_fields import NO_RUN

from ._live import LiveRun
from ._runs import RunRecord
from ._shutdown import Draining

logger = logging.getLogger("aswarm")

_TOUCH_EVERY = 1.0
_TOUCHED_SECONDS = 3.0  # a process records its readers each second; if it is late, this time covers two missing records


class Readers:
    """Counts the readers of runs. `background`: a task group, set while the runs are open."""

    background: anyio.abc.TaskGroup

    def __init__(self, database: Database, draining: Draining) -> None:
        self.draining = draining
        self._database = database
        self._foreign: dict[str, int] = {}  # run id of another process: the number of its readers in this process

    @contextmanager
    def reading(self, record: RunRecord, live: LiveRun | None) -> Generator[LiveRun | None]:
        """Count a reader of the run during the block. `live`: the attempt in this process, if any."""
        if live is None:
            with self._reading_foreign(record):
                yield None
            return
        live.readers += 1
        live.unread.cancel()
        try:
            yield live
        finally:
            live.readers -= 1
            if live.readers == 0 and not self.draining.is_set and live.record.on_disconnect != "finish":
                self.mark_unread(live)

    @contextmanager
    def _reading_foreign(self, record: RunRecord) -> Generator[None]:
        if record.on_disconnect == "finish" or not record.is_running:
            yield
            return
        self._foreign[record.id] = self._foreign.get(record.id, 0) + 1
        self.background.start_soon(self._touch_all)
        try:
            yield
        finally:
            self._foreign[record.id] -= 1
            if not self._foreign[record.id]:
                del self._foreign[record.id]

    def mark_unread(self, live: LiveRun) -> None:
        """Start the timer of a run without readers. When the time of its `on_disconnect` is over, the run is cancelled."""
        live.unread.cancel()
        if not live.ended.is_set():
            live.unread = anyio.CancelScope()
            self.background.start_soon(self._cancel_unread, live, live.unread)

    async def _cancel_unread(self, live: LiveRun, scope: anyio.CancelScope) -> None:
        """Cancel the run after the time of its policy, if no process has a reader of it."""
        policy = live.record.on_disconnect
        seconds = policy if isinstance(policy, float | int) else 0.0
        with scope:
            await anyio.sleep(seconds)
            while True:
                with logged("the readers of a run cannot be looked up; another attempt follows"):
                    last_read = await self._database.run(log.last_read, live.record.id)
                    if now() - last_read > max(seconds, _TOUCHED_SECONDS) * 1000:
                        live.cancel("no_reader")
                await anyio.sleep(_TOUCH_EVERY)

    async def touch(self) -> None:
        """Each second, record which runs of other processes have readers in this process. Continue until cancelled."""
        while True:
            await anyio.sleep(_TOUCH_EVERY)
            if self._foreign:
                await self._touch_all()

    async def _touch_all(self) -> None:
        with logged("the readers of runs cannot be recorded"):
            await self._database.run(log.touch, list(self._foreign))


@contextmanager
def logged(what: str) -> Generator[None]:
    """Log an exception of the block and do not raise it: the next try may succeed."""
    try:
        yield
    except Exception:  # each driver of a database has its own errors
        logger.exception(what, extra=NO_RUN)

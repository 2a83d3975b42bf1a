"""The log for an event loop: its calls run in a worker thread, and what runs have to say is written together.

The entries of all runs are written in one transaction, at most every 50 ms: a transaction for each delta would cost a hundred times
as much.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

from aswarm._run.handlers import NO_RUN

from ._entries import Entry
from ._live import LiveRun
from ._log import Ending, LogRow, RunLog

logger = logging.getLogger("aswarm")
P = ParamSpec("P")
T = TypeVar("T")

_WRITE_EVERY = 0.05
_SECONDS_AFTER_FAILURE = 1.0
_ATTEMPTS = 3


class LogAccess:
    """Calls of one `RunLog`, one at a time, and the writer."""

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self._limiter = anyio.CapacityLimiter(1)
        self._writing = anyio.Lock()
        self._dirty = anyio.Event()
        self._unwritten: set[LiveRun] = set()

    async def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of the log. One in memory takes microseconds, and needs no thread."""
        if self.log.path is None:
            return method(*args, **kwargs)
        return await anyio.to_thread.run_sync(partial(method, *args, **kwargs), limiter=self._limiter)

    def note(self, live: LiveRun) -> None:
        """Let the writer write what this run has added."""
        self._unwritten.add(live)
        self._dirty.set()

    async def write_all(self) -> None:
        """Write what is noted, without end."""
        while True:
            await self._dirty.wait()
            await anyio.sleep(_WRITE_EVERY)
            self._dirty = anyio.Event()
            runs, self._unwritten = self._unwritten, set()
            try:
                await self._write(runs)
            except self.log.errors:
                logger.exception("the log of runs cannot be written; another attempt follows", extra=NO_RUN)
                self._unwritten |= runs
                self._dirty.set()
                await anyio.sleep(_SECONDS_AFTER_FAILURE)

    async def _write(self, runs: set[LiveRun], last: Entry | None = None, ending: Ending | None = None) -> None:
        async with self._writing:
            by_id = {live.record.id: live for live in runs}
            rows = {run_id: row for run_id, live in by_id.items() if (row := live.unwritten(last)) is not None}
            endings: Mapping[str, Ending] = {} if ending is None else dict.fromkeys(rows, ending)
            fenced = await self.call(self.log.append, rows, endings)
            for run_id, row in rows.items():
                _settle(by_id[run_id], row, is_fenced=run_id in fenced)

    async def end(self, live: LiveRun, last: Entry, ending: Ending) -> bool:
        """Write the last entry of a run with what was not written before. A failure is logged, and False is returned."""
        for _ in range(_ATTEMPTS):
            try:
                await self._write({live}, last, ending)
            except self.log.errors:
                logger.exception(
                    "the end of the run %s cannot be written", live.record.id, extra=live.record.log_fields
                )
                await anyio.sleep(_SECONDS_AFTER_FAILURE)
            else:
                return True
        return False


def _settle(live: LiveRun, row: LogRow, *, is_fenced: bool) -> None:
    if is_fenced:
        live.fence()
    else:
        live.written(row)

"""One execution of a durable run in this process: from its work to its last write, or to the moment when it is left.

Decides what of a replay is new, and how an execution ends: the run is over, another process has it, or it is handed back.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aswarm._errors import AswarmError
from aswarm.serve._entries import Entry
from aswarm.serve._entry_maker import EntryMaker
from aswarm.serve._live import LiveRun
from aswarm.serve._logged_runs import entries_of

from ._log import Taken
from ._middleware import durable_middleware
from ._replay import Replay
from ._steps import RecordedSteps, Steps, is_cancelled, is_lost
from ._work import DurableDriver, StoredHistory, Work

if TYPE_CHECKING:
    from ._durable_runs import DurableRuns

logger = logging.getLogger("aswarm")
# ruff: noqa: SLF001 - it is a part of `DurableRuns`

HANDED_BACK = "handed back"  # the reason of a run that this process leaves to the others


class RunAttempt:
    """One execution of a run. `is_left`: the run has not ended, and another process continues it."""

    def __init__(self, runs: DurableRuns, live: LiveRun, taken: Taken) -> None:
        self.is_left = False
        self._runs = runs
        self._live = live
        self._taken = taken
        self._is_lost = False
        # Until they are known, a run that was executed before has steps that are not replayed.
        self._steps = Steps({0: None} if taken.attempts > 1 else None)
        self._driver: DurableDriver | None = None
        self._history: StoredHistory | None = None
        self._replay = Replay(())

    async def execute(self) -> None:
        """Execute the run. Once this returns, its end is written, unless the run `is_left` or its `LiveRun` is fenced."""
        live, record = self._live, self._taken.record
        if record.on_disconnect not in ("finish", "cancel") and not live.readers:
            self._runs._mark_unread(live)
        error: Exception | None = None
        try:
            with live.scope, anyio.move_on_after(self._runs.limits.seconds):
                try:
                    await self._drive(await self._recorded_steps())
                except Exception as failure:
                    error = failure
                    fields = record.log_fields
                    logger.warning("the run %s has ended with an error", record.id, exc_info=failure, extra=fields)
        except BaseException as failure:
            if is_lost(failure):
                self._is_lost = True
            elif is_cancelled(failure):
                live.reason = live.reason or "cancelled"
            else:
                live.fence()
                raise
        with anyio.CancelScope(shield=True):
            await self._conclude(error)

    async def close(self, error: Exception | None) -> None:
        """End a run that is not executed: with `error`, or with the reason of its `LiveRun`. Its conversation gets what is recorded."""
        with anyio.CancelScope(shield=True):
            await self._replay_records()
            # If this process ends before the database can be used, another one does it.
            with suppress(asyncio.CancelledError):
                await self._end(self._live.reason or "", error)

    async def _conclude(self, error: Exception | None) -> None:
        live, runs = self._live, self._runs
        has_ended = error is not None or (self._driver is not None and self._driver.has_finished)
        if self._is_lost and not live.is_fenced:
            # A stale execution has recorded a step, or is the one that records no more: the log knows which process has the run.
            self.is_left = await runs.insist(lambda: runs._access.call(runs._log.is_owner, self._taken.record.id))
            if not self.is_left:
                live.fence()
        elif live.is_fenced:
            return
        elif live.reason == HANDED_BACK and not has_ended:
            self.is_left = True
        else:
            if not self._steps.is_replayed and (error is not None or not has_ended):
                await self._replay_records()
                if isinstance(error, AswarmError) and self._driver is not None:
                    error.response = self._driver.response_after(None) or error.response
            await self._end(live.reason or "time_limit", error)

    async def _replay_records(self) -> None:
        """Replay all that is recorded, and do nothing else, so that the conversation gets it."""
        record = self._taken.record
        try:
            recorded = await self._runs._engine.recorded(record.id)
            with anyio.CancelScope() as scope:
                await self._drive(RecordedSteps(recorded, scope.cancel))
        except Exception as failure:  # such as agents that this process does not have
            what = "what the run %s has recorded is not in its conversation"
            logger.warning(what, record.id, exc_info=failure, extra=record.log_fields)

    async def _recorded_steps(self) -> Steps:
        if self._taken.attempts > 1:
            self._steps = Steps(await self._runs._engine.recorded(self._taken.record.id))
        return self._steps

    async def _drive(self, steps: Steps) -> None:
        runs, taken, run_id = self._runs, self._taken, self._taken.record.id
        work = Work.from_json(taken.work)
        driver = self._driver = DurableDriver(runs.drivers, work, run_id)
        await driver.load(work.last_run)
        self._history = StoredHistory(runs.store, work, run_id, driver.history)
        is_repeated = taken.attempts > 1
        if is_repeated:
            self._replay = Replay(await runs.insist(self._logged_entries))
        await runs.insist(partial(self._history.begin, driver.agent, is_repeated=is_repeated))
        driver.use(durable_middleware(run_id, runs.version, steps, driver.agents, driver.open_calls))
        await driver.drive(self._add)

    async def _logged_entries(self) -> list[Entry]:
        runs, found = self._runs, list[Entry]()
        run_id, log = self._taken.record.id, runs._log
        while rows := (await runs._access.call(log.entry_rows, run_id, found[-1].seq if found else -1))[0]:
            found += entries_of(rows, found[-1].seq if found else -1)
        return found

    def _add(self, entry: Entry) -> None:
        if not self._replay.is_known(entry):
            self._runs._add(self._live, replace(entry, seq=self._live.last + 1))

    async def _end(self, reason: str, error: Exception | None) -> None:
        driver = self._driver
        if driver is not None and self._history is not None and (response := driver.response_after(error)) is not None:
            try:
                await self._runs.insist(partial(self._history.end, response, error))
            except AswarmError as failure:
                fields = self._taken.record.log_fields
                logger.exception("the conversation of the run %s could not be written", driver.run_id, extra=fields)
                error = error or failure
        if driver is not None:
            entries = driver.endings(reason, error)
        else:
            maker = EntryMaker(error_text=self._runs.drivers.error_text)
            entries = maker.stopped(reason) if error is None else maker.failed(error)
        first = self._live.last + 1
        await self._runs._end(self._live, [replace(entry, seq=first + at) for at, entry in enumerate(entries)])

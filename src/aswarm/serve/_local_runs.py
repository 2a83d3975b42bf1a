"""`LocalRuns`: runs on one machine. Each run is a task of this process; its log is memory, or a file that processes share.

Decides what happens to runs around their task: who may start one, when the last reader has gone, when the process ends,
and when another process has died. What a run does is decided by `stream()` and by the conversation.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Self

import anyio

from aswarm._agent import Agent
from aswarm._errors import AswarmError
from aswarm._swarm import AsyncSwarm
from aswarm.conversations import MemoryStore, Store

from ._changes import Changes
from ._driving import Driver, Drivers
from ._entries import Entry
from ._entry_maker import EntryMaker
from ._live import LiveRun
from ._log import Ending, LogRow, RunLog
from ._log_access import LogAccess
from ._logged_runs import LoggedRuns, entries_of
from ._runs import Limits, RunRecord
from ._shutdown import Draining, ShieldedExitStack

logger = logging.getLogger("aswarm")

_FORGET_EVERY = 60.0
# A process that died may have shown entries to readers that it had not written. The numbers after them are not used again.
_GAP = 10_000
_DIED = "process_died"


class LocalRuns(LoggedRuns):
    """Implements `Runs` for the processes of one machine: `async with LocalRuns(swarm, store, agents=[...]) as runs: ...`.

    `store`: where conversations are kept, by default memory. `log`: the path of the SQLite file of the runs, by default
    that of the store, and memory if the store has no file. Processes that share the file share the runs: one starts a run,
    another reads it and stops it. `agents`: a list, or a dict by their names; a new conversation begins with the first one.
    `limits`: how much clients may use. `silent_seconds`: seconds after which other processes take a silent process for
    dead, and close its runs with `RunStopped`. The runs of a process that has ended are closed within a third of that time,
    and at once when a message needs the conversation. `error_text`: as of `Service`.
    """

    def __init__(
        self,
        swarm: AsyncSwarm,
        store: Store | None = None,
        *,
        agents: Agent | Iterable[Agent] | Mapping[str, Agent],
        limits: Limits = Limits(),  # noqa: B008 - frozen
        log: str | PathLike[str] | None = None,
        silent_seconds: float = 10,
        error_text: Callable[[BaseException], str] | None = None,
    ) -> None:
        store = MemoryStore() if store is None else store
        super().__init__(Drivers(swarm, store, agents, limits, error_text), limits)
        self._path = getattr(store, "path", None) if log is None else log
        self._lease = silent_seconds

    # --- the life of this object ---

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise RuntimeError("these runs are open already; make another LocalRuns, or share this one")
        self.draining, self._deadline = Draining(), math.inf
        log = await anyio.to_thread.run_sync(lambda: RunLog(self._path, lease=self._lease))
        async with ShieldedExitStack() as stack:
            stack.callback(log.close)
            self._log, self._access = log, LogAccess(log)
            self._changes = Changes(lambda: self._access.call(log.data_version), seconds=0.05, errors=log.errors)
            self._background = background = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(background.cancel_scope.cancel)
            await self._close_expired()
            background.start_soon(self._access.write_all)
            background.start_soon(self._keep)
            if log.path is not None:
                background.start_soon(self._changes.poll, self._apply_cancel_requests, lambda: bool(self._live))
                background.start_soon(self._touch)
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._resources = stack.pop_all()
        self._is_open = True
        return self

    # --- starting ---

    async def _launch(self, live: LiveRun, driver: Driver) -> None:
        self._tasks.start_soon(self._execute, live, driver)

    async def _execute(self, live: LiveRun, driver: Driver) -> None:
        if live.record.on_disconnect not in ("finish", "cancel") and not live.readers:
            self._mark_unread(live)
        error: Exception | None = None
        reason: str | None = "shutdown"
        try:
            with live.scope, anyio.move_on_after(self.limits.seconds):
                try:
                    await driver.drive(partial(self._add, live))
                except Exception as failure:
                    error = failure
                    fields = live.record.log_fields
                    logger.warning("the run %s has ended with an error", live.record.id, exc_info=failure, extra=fields)
            reason = live.reason or "time_limit"
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await self._end(live, driver.endings(reason, error))
                except Exception:  # an error of one run must not end the others; the lease of this one runs out
                    logger.exception(
                        "the end of the run %s cannot be recorded", live.record.id, extra=live.record.log_fields
                    )
                    self._live.pop(live.record.id, None)
                    live.end()

    # --- other processes ---

    async def _keep(self) -> None:
        """Renew the leases, close the runs of dead processes, forget old ones; without end."""
        forgotten = anyio.current_time()
        while True:
            await anyio.sleep(self._lease / 3)
            with self._logged("the leases of runs cannot be renewed"):
                await self._access.call(self._log.renew, list(self._live))
                await self._close_expired()
            if anyio.current_time() - forgotten > _FORGET_EVERY:
                forgotten = anyio.current_time()
                with self._logged("old runs cannot be deleted"):
                    await self._forget_old()

    async def _close_expired(self) -> bool:
        """Close the runs whose process has died. Returns whether there were any."""
        records = await self._access.call(self._log.take_expired)
        for record in records:
            try:
                entries = await self._closing_entries(record)
            except AswarmError:  # the run stays open until the next attempt, after the lease
                logger.exception("the messages of the run %s cannot be stored", record.id, extra=record.log_fields)
                continue
            row = LogRow(entries[0].seq, entries[-1].seq, b"\n".join(entry.to_json() for entry in entries))
            await self._access.call(self._log.append, {record.id: row}, {record.id: Ending("stopped", _DIED)})
        if records:
            self._changes.notify()
        return bool(records)

    async def _closing_entries(self, record: RunRecord) -> Sequence[Entry]:
        """The last entries of a run whose process has died. Raises AswarmError if the store cannot be used.

        Its client knows the first messages as recorded: they are added to the conversation, if only the log has them. What
        the conversation has beyond the log is in the entries.
        """
        entries: list[Entry] = []
        while rows := (await self._access.call(self._log.entry_rows, record.id, entries[-1].seq if entries else -1))[0]:
            entries += entries_of(rows, entries[-1].seq if entries else -1)
        maker, response = EntryMaker(), None
        if entries and record.conversation is not None:
            maker, response = await self.drivers.recover(record.user, record.conversation, entries)
        maker.seq = record.last + 1 + _GAP
        return maker.stopped(_DIED, response)

"""`LocalRuns`: runs on one machine. Each run is a task of this process; its log is memory, or a file that processes share.

Decides what happens to runs around their task: who may start one, when the last reader has gone, when the process ends,
and when another process has died. What a run does is decided by `stream()` and by the conversation.
"""

from __future__ import annotations

import json
import logging
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel

from aswarm._agent import Agent
from aswarm._errors import AswarmError
from aswarm._run.handlers import NO_RUN
from aswarm._swarm import AsyncSwarm
from aswarm.conversations import MemoryStore, Store

from ._changes import Changes
from ._driving import Driver, Drivers
from ._entries import Entry, now
from ._entry_maker import EntryMaker
from ._live import LiveRun
from ._log import Ending, Lot, RunLog
from ._log_access import LogAccess
from ._runs import AnswersRefused, Limits, NewRun, RunActive, RunLimit, RunNotFound, RunRecord, ShuttingDown
from ._shutdown import Draining

logger = logging.getLogger("aswarm")

_FORGET_EVERY = 60.0
_TOUCH_EVERY = 1.0
_TOUCHED_SECONDS = 3.0  # a reader of another process is there if it was noted in the last seconds
# A process that died may have shown entries to readers that it had not written. The numbers after them are not used again.
_GAP = 10_000
_DIED = "process died"


class LocalRuns:
    """Implements `Runs` for the processes of one machine: `async with LocalRuns(swarm, store, agents=[...]) as runs: ...`.

    `store`: of the conversations. `log`: the path of the SQLite file of the runs, by default that of the store, and memory
    if the store has no file. Processes that share the file share the runs: one starts a run, another reads it and stops it.
    `agents`: a list, or a dict by their names; a new conversation begins with the first one.
    `silent_seconds`: seconds after which other processes take a silent process for dead, and close its runs with `RunStopped`.
    The runs of a process that has ended are closed within a third of it, and at once when a message needs the conversation.
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
        self.limits = limits
        store = MemoryStore() if store is None else store
        self.drivers = Drivers(swarm, store, agents, limits, error_text)
        self._path = getattr(store, "path", None) if log is None else log
        self._lease = silent_seconds
        self._live: dict[str, LiveRun] = {}
        self._foreign: dict[str, int] = {}  # how many readers here a run of another process has
        self._waiting: Counter[str] = Counter()  # how many messages of a user wait for an active run
        self.draining = Draining()
        self._deadline = math.inf
        self._resources = AsyncExitStack()
        self._is_open = False

    # --- the life of this object ---

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise RuntimeError("these runs are open already; make another LocalRuns, or share this one")
        self.draining, self._deadline = Draining(), math.inf
        log = await anyio.to_thread.run_sync(lambda: RunLog(self._path, lease=self._lease))
        async with AsyncExitStack() as stack:
            stack.callback(log.close)
            self._log, self._access = log, LogAccess(log)
            self._changes = Changes(lambda: self._access.call(log.data_version), seconds=0.05)
            self._background = background = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(background.cancel_scope.cancel)
            await self._close_expired()
            background.start_soon(self._access.write_all)
            background.start_soon(self._keep)
            if log.path is not None:
                background.start_soon(self._changes.poll, self._obey, lambda: bool(self._live))
                background.start_soon(self._touch)
            self._tasks = await stack.enter_async_context(anyio.create_task_group())
            self._resources = stack.pop_all()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drain(0)
        self._is_open = False
        await self._resources.aclose()  # the exception of the block leaves as itself, not in a group

    async def drain(self, seconds: float) -> None:
        """Start no more runs, and wait until all have ended. Those that run after so many seconds are stopped, and kept.

        A second call does not wait longer than the first.
        """
        self.draining.set()
        self._deadline = min(self._deadline, anyio.current_time() + seconds)
        with anyio.CancelScope(shield=True):
            with anyio.CancelScope(deadline=self._deadline):
                await self._ended()
            for live in list(self._live.values()):
                live.cancel("shutdown")
            await self._ended()

    async def _ended(self) -> None:
        while self._live:
            await next(iter(self._live.values())).ended.wait()

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("the runs are not open: use `async with LocalRuns(...)`, or the lifespan of the service")
        if self.draining.is_set:
            raise ShuttingDown

    # --- starting ---

    async def start(self, new: NewRun) -> RunRecord:
        """See `Runs.start`."""
        driver = self.drivers.driver(new)
        while True:
            self._check_open()
            try:
                return await self._begin(new, driver)
            except RunActive as active:
                await self._make_way(active, new)

    async def _make_way(self, active: RunActive, new: NewRun) -> None:
        if await self._close_expired():
            return
        if new.while_running == "refuse":
            raise active
        if self._waiting[new.user] >= self.limits.runs_per_user:
            raise RunLimit("user")
        self._waiting[new.user] += 1
        try:
            with suppress(RunNotFound):  # the active run could not begin
                if new.while_running == "replace":
                    await self.cancel(active.run_id, user=new.user, reason="replaced")
                await self._end_of(active.run_id, new.user)
        finally:
            self._waiting[new.user] -= 1
            self._waiting = +self._waiting  # without the users that have none

    async def _end_of(self, run_id: str, user: str) -> None:
        after = max(-1, (await self.get(run_id, user=user)).last - 1)
        while (batch := await self.read(run_id, after, user=user)) and not batch[-1].is_last:
            after = batch[-1].seq

    async def _begin(self, new: NewRun, driver: Driver) -> RunRecord:
        begun: list[RunRecord] = []
        with anyio.CancelScope(shield=True):  # a run that has begun in the log begins here too
            begun.append(await self._begin_shielded(new, driver))
        return begun[0]

    async def _begin_shielded(self, new: NewRun, driver: Driver) -> RunRecord:
        record = await self._access.call(self._log.begin, new, driver.run_id, self.limits)
        if not record.is_new:
            return record
        live = self._live[record.id] = LiveRun(
            record
        )  # from now on `drain` waits for the run, and its lease is renewed
        try:
            first = await driver.load(await self._last_run(new, record.id))
            self._check_open()
            lot = Lot(first.seq, first.seq, first.to_json())
            if await self._access.call(self._log.append, {record.id: lot}, {}):
                raise RunNotFound(record.id)  # another process has closed the run
        except BaseException as error:
            try:
                await self._access.call(self._log.withdraw, record.id)
            finally:
                self._live.pop(record.id)
                live.end()
            if isinstance(error, AnswersRefused) and (known := await self._same_answers(new)) is not None:
                return known
            raise
        live.add(first)
        live.written(Lot(first.seq, first.seq, b""))
        self._tasks.start_soon(self._execute, live, driver)
        self._changes.ring()
        self._changes.want()
        return record

    async def _last_run(self, new: NewRun, run_id: str) -> str | None:
        if new.conversation is None:
            return None
        records = await self._access.call(self._log.records, new.user, new.conversation, 2)
        return next((record.id for record in records if record.id != run_id), None)

    async def _same_answers(self, new: NewRun) -> RunRecord | None:
        """The last run of the conversation, if it was about the same answers: a request may be sent twice."""
        if new.answers and new.conversation is not None:
            records = await self._access.call(self._log.records, new.user, new.conversation, 1)
            if [record.digest for record in records] == [new.digest]:
                return records[0]
        return None

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
            reason = live.reason or "time limit"
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

    def _add(self, live: LiveRun, entry: Entry) -> None:
        live.add(entry)
        self._access.note(live)
        if live.bytes > self.limits.log_bytes:
            live.cancel("its log is too long")

    async def _end(self, live: LiveRun, entries: list[Entry]) -> None:
        *more, last = entries
        for entry in more:
            live.add(entry)
        await self._access.end(live, last, _ending(last))
        # Readers see the end when the conversation is free for the next run.
        self._live.pop(live.record.id)
        live.add(last)
        live.end()
        self._changes.ring()

    # --- reading ---

    async def get(self, run_id: str, *, user: str) -> RunRecord:
        """See `Runs.get`."""
        record = await self._access.call(self._log.find, run_id, user)
        live = self._live.get(run_id)
        return record if live is None else replace(record, last=live.last)

    async def list(self, *, user: str, conversation: str | None = None, limit: int = 100) -> list[RunRecord]:
        """See `Runs.list`."""
        return await self._access.call(self._log.records, user, conversation, limit)

    async def read(self, run_id: str, after: int = -1, *, user: str) -> Sequence[Entry]:
        """See `Runs.read`."""
        live = self._live.get(run_id)
        if live is None or live.record.user != user:
            await self.get(run_id, user=user)
        elif found := await live.read(after):
            return found
        while True:
            wait = self._changes.ticket()
            lots, is_running = await self._access.call(self._log.lots, run_id, after)
            await anyio.lowlevel.checkpoint()  # a long log in memory is read without another one
            if lots or not is_running:
                return _entries(lots, after)
            await wait()

    async def cancel(self, run_id: str, *, user: str, reason: str = "cancelled") -> RunRecord:
        """See `Runs.cancel`."""
        record = await self.get(run_id, user=user)
        live = self._live.get(run_id)
        if live is not None:
            live.cancel(reason)
        elif record.is_running:
            await self._access.call(self._log.ask_cancel, run_id, reason)
        await self._end_of(run_id, user)
        return await self.get(run_id, user=user)

    async def forget(self, conversation: str, *, user: str) -> None:
        """See `Runs.forget`."""
        await self._access.call(self._log.forget_conversation, user, conversation)

    @contextmanager
    def reading(self, record: RunRecord) -> Generator[None]:
        """See `Runs.reading`."""
        live = self._live.get(record.id)
        if live is None:
            with self._reading_foreign(record):
                yield
            return
        live.readers += 1
        live.unread.cancel()
        try:
            yield
        finally:
            live.readers -= 1
            if live.readers == 0 and not self.draining.is_set and live.record.on_disconnect != "finish":
                self._mark_unread(live)

    @contextmanager
    def _reading_foreign(self, record: RunRecord) -> Generator[None]:
        if record.on_disconnect == "finish" or not record.is_running:
            yield
            return
        self._foreign[record.id] = self._foreign.get(record.id, 0) + 1
        self._background.start_soon(self._touch_all)
        try:
            yield
        finally:
            self._foreign[record.id] -= 1
            if not self._foreign[record.id]:
                del self._foreign[record.id]

    def _mark_unread(self, live: LiveRun) -> None:
        live.unread.cancel()
        if not live.ended.is_set():
            live.unread = anyio.CancelScope()
            self._background.start_soon(self._cancel_unread, live, live.unread)

    async def _cancel_unread(self, live: LiveRun, scope: anyio.CancelScope) -> None:
        """Cancel the run when it has been without a reader for as long as its policy says, here and in other processes."""
        policy = live.record.on_disconnect
        seconds = policy if isinstance(policy, float | int) else 0.0
        with scope:
            await anyio.sleep(seconds)
            while True:
                with _logged("the readers of a run cannot be looked up; another attempt follows"):
                    last_read = await self._access.call(self._log.last_read, live.record.id)
                    if now() - last_read > max(seconds, _TOUCHED_SECONDS) * 1000:
                        live.cancel("no reader")
                await anyio.sleep(_TOUCH_EVERY)

    # --- other processes ---

    async def _obey(self) -> None:
        """Stop the runs that other processes ask to stop."""
        for run_id, reason in (await self._access.call(self._log.asked_to_cancel)).items():
            if live := self._live.get(run_id):
                live.cancel(reason)

    async def _touch(self) -> None:
        while True:
            await anyio.sleep(_TOUCH_EVERY)
            if self._foreign:
                await self._touch_all()

    async def _touch_all(self) -> None:
        with _logged("the readers of runs cannot be noted"):
            await self._access.call(self._log.touch, list(self._foreign))

    async def _keep(self) -> None:
        """Renew the leases, close the runs of dead processes, forget old ones; without end."""
        forgotten = anyio.current_time()
        while True:
            await anyio.sleep(self._lease / 3)
            with _logged("the leases of runs cannot be renewed"):
                await self._access.call(self._log.renew, list(self._live))
                await self._close_expired()
            if anyio.current_time() - forgotten > _FORGET_EVERY:
                forgotten = anyio.current_time()
                with _logged("old runs cannot be deleted"):
                    before = now() - int(self.limits.kept_seconds * 1000)
                    await self._access.call(self._log.forget, before, self.limits.kept_runs, self.limits.kept_bytes)

    async def _close_expired(self) -> bool:
        """Close the runs whose process has died. Returns whether there were any."""
        records = await self._access.call(self._log.take_expired)
        for record in records:
            try:
                entries = await self._closing_entries(record)
            except AswarmError:  # the run stays open until the next attempt, after the lease
                logger.exception("the messages of the run %s cannot be stored", record.id, extra=record.log_fields)
                continue
            lot = Lot(entries[0].seq, entries[-1].seq, b"\n".join(entry.to_json() for entry in entries))
            await self._access.call(self._log.append, {record.id: lot}, {record.id: Ending("stopped", _DIED)})
        if records:
            self._changes.ring()
        return bool(records)

    async def _closing_entries(self, record: RunRecord) -> Sequence[Entry]:
        """The last entries of a run whose process has died. Raises AswarmError if the store cannot be used.

        Its client knows the first messages as recorded: they are added to the conversation, if only the log has them. What
        the conversation has beyond the log is in the entries.
        """
        entries: list[Entry] = []
        while lots := (await self._access.call(self._log.lots, record.id, entries[-1].seq if entries else -1))[0]:
            entries += _entries(lots, entries[-1].seq if entries else -1)
        maker, response = EntryMaker(), None
        if entries and record.conversation is not None:
            maker, response = await self.drivers.recover(record.user, record.conversation, entries)
        maker.seq = record.last + 1 + _GAP
        return maker.stopped(_DIED, response)


@contextmanager
def _logged(what: str) -> Generator[None]:
    """Log what the database raises: the next attempt may succeed."""
    try:
        yield
    except sqlite3.Error:
        logger.exception(what, extra=NO_RUN)


def _ending(last: Entry) -> Ending:
    match last.type:
        case "RunFinished":
            return Ending("finished")
        case "RunFailed":
            return Ending("failed", last.fields["error"]["type"])
        case _:
            return Ending("stopped", last.fields["reason"])


def _entries(lots: Sequence[Lot], after: int) -> list[Entry]:
    entries = (Entry.from_dict(json.loads(line)) for lot in lots for line in lot.data.split(b"\n"))
    return [entry for entry in entries if entry.seq > after]

"""`LoggedRuns`: what implementations of `Runs` with a log have in common.

Decides what the log answers: who may start a run, what readers get, who may cancel, and when the last reader has gone. How a
run is executed, and what happens to the runs of a process that has died, is decided by the implementations.
"""

from __future__ import annotations

import json
import logging
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from types import TracebackType

import anyio
import anyio.abc
import anyio.lowlevel

from aswarm._run.handlers import NO_RUN

from ._changes import Changes
from ._driving import Driver, Drivers
from ._entries import Entry, now
from ._live import LiveRun
from ._log import Ending, LogRow, RunLog
from ._log_access import LogAccess
from ._runs import AnswersRefused, Limits, NewRun, RunActive, RunLimit, RunNotFound, RunRecord, ShuttingDown
from ._shutdown import Draining

logger = logging.getLogger("aswarm")

_TOUCH_EVERY = 1.0
_TOUCHED_SECONDS = 3.0  # a reader of another process is there if it was noted in the last seconds


class LoggedRuns(ABC):
    """Runs whose entries are in a log. An implementation sets `_log`, `_access`, `_changes` and `_background` when it opens."""

    _log: RunLog
    _access: LogAccess
    _changes: Changes
    _background: anyio.abc.TaskGroup
    _left_because = "shutdown"  # why a run is cancelled that runs when `drain` waits no longer

    def __init__(self, drivers: Drivers, limits: Limits) -> None:
        self.limits = limits
        self.drivers = drivers
        self._live: dict[str, LiveRun] = {}
        self._foreign: dict[str, int] = {}  # how many readers here a run of another process has
        self._waiting: Counter[str] = Counter()  # how many messages of a user wait for an active run
        self.draining = Draining()
        self._deadline = math.inf
        self._is_open = False
        self._resources = AsyncExitStack()

    @abstractmethod
    async def _launch(self, live: LiveRun, driver: Driver) -> None:
        """Let a run that is recorded begin."""

    @abstractmethod
    async def _close_expired(self) -> bool:
        """Do what is to be done to the runs of dead processes. Returns whether there were any that are over now."""

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError(
                f"the runs are not open: use `async with {type(self).__name__}(...)`, or the lifespan of the service"
            )
        if self.draining.is_set:
            raise ShuttingDown

    async def _ended(self) -> None:
        while self._live:
            await next(iter(self._live.values())).ended.wait()

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
                live.cancel(self._left_because)
            await self._ended()

    # --- starting ---

    async def start(self, new: NewRun) -> RunRecord:
        """See `Runs.start`."""
        driver = self.drivers.driver(new)
        while True:
            self._check_open()
            try:
                return await self._begin(new, driver)
            except RunActive as active:
                # Another process may have begun the same run a moment ago; then the log returns that one now.
                if await self._same_answers(new) is None:
                    await self._after_active(active, new)

    async def _after_active(self, active: RunActive, new: NewRun) -> None:
        if await self._close_expired():
            return
        if new.while_running == "refuse":
            raise active
        if self._waiting[new.user] >= self.limits.runs_per_user:
            raise RunLimit("user")
        self._waiting[new.user] += 1
        try:
            with suppress(RunNotFound), self.draining.interrupts():  # the active run could not begin
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
        live = self._live[record.id] = LiveRun(record)  # from now on `drain` waits for it
        try:
            first = await driver.load(await self._last_run(new, record.id))
            self._check_open()
            await self._write_first(live, driver, first)
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
        live.written(LogRow(first.seq, first.seq, b""))
        await self._launch(live, driver)
        self._changes.notify()
        self._changes.wake_poller()
        return record

    async def _write_first(self, live: LiveRun, driver: Driver, first: Entry) -> None:  # noqa: ARG002 - others need it
        """Write the first entry of a run. Raises RunNotFound if another process has closed the run."""
        row = LogRow(first.seq, first.seq, first.to_json())
        if await self._access.call(self._log.append, {live.record.id: row}, {}):
            raise RunNotFound(live.record.id)

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

    def _add(self, live: LiveRun, entry: Entry) -> None:
        live.add(entry)
        self._access.note(live)
        if live.bytes > self.limits.log_bytes:
            live.cancel("log_too_long")

    async def _end(self, live: LiveRun, entries: list[Entry]) -> None:
        *more, last = entries
        for entry in more:
            live.add(entry)
        await self._write_end(live, last)
        # Readers see the end when the conversation is free for the next run.
        if self._live.get(live.record.id) is live:  # otherwise it was fenced while its end was being written
            self._live.pop(live.record.id)
        live.add(last)
        live.end()
        self._changes.notify()

    async def _write_end(self, live: LiveRun, last: Entry) -> None:
        await self._access.end(live, last, ending_of(last))

    # --- reading ---

    async def get(self, run_id: str, *, user: str) -> RunRecord:
        """See `Runs.get`."""
        record = await self._access.call(self._log.find, run_id, user)
        live = self._live.get(run_id)
        return record if live is None or live.is_fenced else replace(record, last=live.last_seen)

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
            wait = self._changes.waiter()
            rows, is_running = await self._access.call(self._log.entry_rows, run_id, after)
            await anyio.lowlevel.checkpoint()  # a long log in memory is read without another one
            if rows or not is_running:
                return entries_of(rows, after)
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
        await self._delete(await self._access.call(self._log.of_conversation, user, conversation))

    async def _delete(self, run_ids: Sequence[str]) -> None:
        """Delete runs that have ended. If this fails, it can be repeated."""
        await self._access.call(self._log.delete, run_ids)

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
                with self._logged("the readers of a run cannot be looked up; another attempt follows"):
                    last_read = await self._access.call(self._log.last_read, live.record.id)
                    if now() - last_read > max(seconds, _TOUCHED_SECONDS) * 1000:
                        live.cancel("no_reader")
                await anyio.sleep(_TOUCH_EVERY)

    # --- other processes ---

    async def _apply_cancel_requests(self) -> None:
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
        with self._logged("the readers of runs cannot be noted"):
            await self._access.call(self._log.touch, list(self._foreign))

    async def _forget_old(self) -> None:
        before = now() - int(self.limits.kept_seconds * 1000)
        await self._delete(
            await self._access.call(self._log.old, before, self.limits.kept_runs, self.limits.kept_bytes)
        )

    @contextmanager
    def _logged(self, what: str) -> Generator[None]:
        """Log what the database raises: the next attempt may succeed."""
        try:
            yield
        except self._log.errors:
            logger.exception(what, extra=NO_RUN)


def ending_of(last: Entry) -> Ending:
    """What the last entry says of the end."""
    match last.type:
        case "RunFinished":
            stop = last.response["stop"] if last.response else "answer"
            return Ending("finished", None if stop == "answer" else stop)
        case "RunFailed":
            return Ending("failed", last.fields["error"]["type"])
        case _:
            return Ending("stopped", last.fields["reason"])


def entries_of(rows: Sequence[LogRow], after: int) -> list[Entry]:
    """The entries of some rows with numbers above `after`."""
    entries = (Entry.from_dict(json.loads(line)) for row in rows for line in row.data.split(b"\n"))
    return [entry for entry in entries if entry.seq > after]

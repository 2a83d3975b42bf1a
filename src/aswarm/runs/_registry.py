"""`Registry`: the runs of this process, and their log in the database. The runs, the attempts and the readers of one `Runs` share it."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, Unpack

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from aswarm._log import runs as log
from aswarm._log.stored import RunRecord, is_database_text
from aswarm._record.entries import Entry, entries_of, now
from aswarm._record.fold import whole_end
from aswarm._runtime import clocks
from aswarm._runtime.backend import BackgroundTask
from aswarm._sql.database import Database
from aswarm._sql.processes import Liveness, Processes
from aswarm._values.errors import StoreError
from aswarm._values.text import NO_RUN

from . import _starting
from ._attempt import Execution
from ._deleting import Deleter
from ._live import LiveLog
from ._notifier import Notifier, closed_before_end
from ._prepared import PreparedRun, Setup, conversation_key
from ._requests import KeyReused, NewRun, RunNotFound

if TYPE_CHECKING:
    from ._base import Runs

logger = logging.getLogger("aswarm")
T = TypeVar("T")

_SECONDS_AFTER_FAILURE = 1.0


class Registry:
    """The attempts of this process, and the log of all runs of the database.

    `live`: the live entries of each execution, by the id of the run. `starts`: an event for each work that `whole` has not
    completed. `tasks`: executes the attempts. `deleter`: deletes runs. `notifier`: wakes the tasks that wait for runs.

    For an executor that differs from `LocalRuns`: `end_of`: waits for the end of a run, and returns its last entry if this process
    knows it. `on_end`: called for each attempt that has ended here, with the last entry if its run has ended. `process_name`: the
    name of this process; by default a new one. `holds_lock`: whether `join` acquires the lock of this process, which shows that it
    is alive; otherwise the executor acquires it in `locks`.
    """

    processes: Processes
    locks: Liveness | None  # of the processes; None for a database in memory
    background: TaskGroup  # polls
    tasks: TaskGroup

    def __init__(self, runs: Runs, setup: Setup, database: Database, version: str) -> None:
        self.setup, self.database, self.version = setup, database, version
        self.deleter = Deleter(database, setup.limits)
        self.process_name: str | None = None
        self.holds_lock = True
        self.enqueue, self.stop = runs.enqueue, runs.stop
        self.on_end: Callable[[LiveLog, Entry | None], None] = lambda _live, _last: None
        self.live: dict[str, LiveLog] = {}
        self.starts: set[anyio.Event] = set()
        self.end_of: Callable[[RunRecord], Awaitable[Entry | None]] = self.wait_for_end
        self.notifier = Notifier(database, self.live)

    async def join(self, stack: AsyncExitStack) -> None:
        """Register this process in the database, until the stack closes."""
        # The lock of the database does not exclude two tasks of this process: a PostgreSQL session can acquire an advisory lock
        # that it already holds.
        self.processes, self._takeover = Processes(self.database, self.process_name), anyio.Lock()
        self.locks = await stack.enter_async_context(self.processes.joined(holds=self.holds_lock))
        self.background = await task_group(stack)
        self.tasks = await task_group(stack)

    # --- attempts ---

    async def look_up(self, new: NewRun, run_id: str) -> _starting.Found:
        """Look up the data for a new run. Raises KeyReused if its id or its key belongs to another request."""
        key = "" if new.conversation is None else conversation_key(new.user, new.conversation)
        found = await self.database.submit(lambda: _starting.look_up(new, run_id, key), reads_only=True, snapshot=True)
        if (same := found.same) is not None and (same.user != new.user or same.digest != new.digest):
            raise KeyReused(same.id)
        return found

    async def start(self, run: PreparedRun, new: NewRun) -> RunRecord:
        """Record a run, and execute its first attempt if there is no queue. Returns the record of the run.

        Raises TooManyRuns, Conflict and StartAgain, see `_starting.insert`.
        """
        is_queued = self.enqueue(run.run_id) is not None
        if not is_queued:
            # Without a queue, no other process can execute the run. Raise before the run is recorded, so that the same answer can be
            # sent again, for example to a process of the other version during an upgrade.
            _ = run.agent
        record = RunRecord(
            id=run.run_id, user=new.user, conversation=new.conversation, agent=run.starts_with, status="running",
            started_ms=now(), digest=new.digest, on_disconnect=new.on_disconnect, last=0, key=new.key, is_new=True,
            is_queued=is_queued,
        )  # fmt: skip
        owner = None if is_queued else f"{self.processes.name}#{clocks.urandom(6).hex()}"
        insert = partial(_starting.insert, record, run, owner, self.version, self.enqueue)

        async def record_and_execute() -> None:
            await self.database.submit(insert, durable=True, notifies=True)
            if not is_queued:
                live = LiveLog(record, 1, self.database, most_bytes=self.setup.limits.log_bytes)
                live.add_first(run.first)
                self.notifier.note_start(live)
                self.tasks.start_soon(Execution(self, live, run).execute)

        await self.whole(record_and_execute).join()
        return record

    def whole(self, work: Callable[[], Awaitable[T]]) -> BackgroundTask[T]:
        """Start work that changes which process executes a run. It is done as a whole: a caller that is cancelled leaves it.

        It has a task of its own, because a plain `task.cancel()` ignores shields: between the commit and the next step, it would
        leave a run that nothing executes. `drain` waits for the work.
        """
        is_over = anyio.Event()
        self.starts.add(is_over)

        def end() -> None:
            self.starts.discard(is_over)
            is_over.set()

        return BackgroundTask(work, end)

    async def take(self, run_id: str, **options: Unpack[log.TakeOptions]) -> Execution | None:
        """See `Runs.take`."""
        if self.notifier.is_draining:
            return None
        task = self.whole(partial(self._take, run_id, **options))
        try:
            return await task.join()
        except anyio.get_cancelled_exc_class():
            self.whole(partial(self._give_back, task))
            raise

    async def take_over(self, recover: Callable[[str], Awaitable[bool]]) -> bool:
        """Recover the runs of dead processes. Returns whether one of these runs is over."""
        is_over = False
        async with self._takeover:
            for owner in await self.database.submit(log.owners, reads_only=True):
                async with self.processes.dead(owner) as is_dead:  # a lock: only one process takes the owner's runs
                    active = partial(log.active_of, owner)
                    for run_id in await self.database.submit(active, reads_only=True) if is_dead else ():
                        is_over |= await recover(run_id)
        return is_over

    async def _give_back(self, task: BackgroundTask[Execution | None]) -> None:
        """Stop an attempt whose caller was cancelled before it got the attempt."""
        attempt = await task.join()
        if attempt is not None and attempt.has_started:
            self.stop(attempt)
            await attempt.execute()

    async def _take(self, run_id: str, **options: Unpack[log.TakeOptions]) -> Execution | None:
        token = clocks.urandom(6).hex()  # the same for all retries, so that they count as one attempt: see `log.take`
        take = partial(_starting.take, run_id, self.processes.name, token, **options)
        # Durable, because readers see the entries of the attempt before they are on the disk: no later attempt may reuse their numbers.
        taken = await self.retry(lambda: self.database.submit(take, durable=True, notifies=True))
        if taken is None:
            return None
        takeover, entries, stored = taken
        run = PreparedRun.of_entry(self.setup, run_id, takeover.record.user, entries[0], stored)
        first = max((takeover.attempt - 1) * log.ATTEMPT_NUMBERS, takeover.record.last + 1)
        most_bytes = self.setup.limits.log_bytes
        live = LiveLog(takeover.record, takeover.attempt, self.database, first=first, most_bytes=most_bytes)
        attempt = Execution(self, live, run, takeover, entries)
        if takeover.has_started:
            if (before := self.live.get(run_id)) is not None:  # the queue has delivered the run again
                before.fence()
                before.detach()
            self.notifier.note_start(live)
        return attempt

    def detach(self, live: LiveLog, last: Entry | None = None) -> None:
        """Remove a run from this process. `last`: the last entry of the run; None if other processes continue the run."""
        if last is None:
            live.detach()
        else:  # only after the commit: a reader that sees the end may start the next run of the conversation
            live.add_last(last)
            live.end()
        self.notifier.note_end(live, last)
        self.on_end(live, last)

    async def ended(self) -> None:
        """Wait until no run starts or is executed in this process."""
        while self.starts or self.live:
            waits = next(iter(self.starts), None) or next(iter(self.live.values())).ended
            await waits.wait()

    async def retry(
        self, call: Callable[[], Awaitable[T]], on_failure: Callable[[StoreError], object] = lambda _: None
    ) -> T:
        """Repeat the call until the database answers. While this process drains, raise the error instead."""
        while True:
            try:
                return await call()
            except StoreError as failure:
                on_failure(failure)
                if self.notifier.is_draining:
                    raise
                logger.exception("the database cannot be used; another attempt follows", extra=NO_RUN)
                await anyio.sleep(_SECONDS_AFTER_FAILURE)

    # --- reading ---

    async def find(self, run_id: str, user: str | None) -> RunRecord:
        """Return the record of a run. `user`: None for a run of any user. Raises RunNotFound."""
        record = None
        if is_database_text(run_id, user):
            record = await self.database.submit(lambda: log.find(run_id, user), reads_only=True)
        if record is None:
            raise RunNotFound(run_id)
        live = self.live.get(run_id)
        return record if live is None or live.is_fenced else replace(record, last=max(record.last, live.last_seen))

    async def read(self, run_id: str, after: int, user: str) -> Sequence[Entry]:
        """See `Runs.read`."""
        live = self.live.get(run_id)
        if live is None or live.record.user != user:
            await self.find(run_id, user)
        while (entries := await self.next(run_id, after, user)) is None:
            pass
        return entries

    async def next(self, run_id: str, after: int, user: str, seconds: float = math.inf) -> Sequence[Entry] | None:
        """Return entries like `read`. Return None after this number of seconds, or earlier."""
        until = anyio.current_time() + seconds
        while True:
            if (live := self.live.get(run_id)) is not None and (entries := await live.next(after, seconds)) != ():
                return entries
            with self.notifier.watching(run_id) as news:
                changed = news.next(max(0.0, until - anyio.current_time()))
                entries = await self._read_log(run_id, after, user)
                if entries is not None:
                    return entries
                if self.notifier.is_closed:
                    raise closed_before_end(run_id)
                self.notifier.poll_soon()
                await changed.wait()
            if self.notifier.is_draining or anyio.current_time() >= until:
                return None

    async def _read_log(self, run_id: str, after: int, user: str) -> Sequence[Entry] | None:
        """Return the next entries from the log: an empty list after the last entry, None if the run is active."""
        rows, is_active = await self.database.submit(lambda: log.read(run_id, after), reads_only=True)
        await anyio.lowlevel.checkpoint()  # `submit` of the database in memory has no checkpoint
        if rows:
            entries = entries_of(rows, after)
            if entries[-1].is_last:
                entries[-1] = await self.last_of(run_id)
            return entries
        if is_active:
            return None
        await self.find(run_id, user)  # it may have been deleted meanwhile
        return ()

    async def last_of(self, run_id: str) -> Entry:
        """Return the last entry of an ended run with its messages, which only the earlier entries contain.

        Raises RunNotFound if the run was deleted.
        """
        entries = entries_of(await self.database.submit(lambda: log.facts(run_id), reads_only=True))
        if not entries:
            raise RunNotFound(run_id)
        return whole_end(entries)

    async def recorded(self, run_id: str) -> list[Entry]:
        """Return all recorded entries of a run."""
        return entries_of(await self.database.submit(lambda: log.entries(run_id), reads_only=True))

    async def wait_for_end(self, record: RunRecord) -> Entry:
        """Wait for the end of a run, and return its last entry. Raises RunNotFound if the log was deleted."""
        run_id, user = record.id, record.user
        expected = (await self.find(run_id, user)).last
        while True:
            after = max(-1, expected - 1)
            while batch := await self.read(run_id, after, user):
                if batch[-1].is_last:
                    return batch[-1]
                after = batch[-1].seq
            # The entry `expected` may be lost: another attempt took over the run before the first attempt wrote it.
            last = (await self.find(run_id, user)).last
            if last == expected:
                raise RunNotFound(run_id)
            expected = last


async def task_group(stack: AsyncExitStack) -> TaskGroup:
    """Return a task group. When the stack closes, it cancels the task group."""
    group = await stack.enter_async_context(anyio.create_task_group())
    stack.callback(group.cancel_scope.cancel)
    return group

"""`LoggedRuns`: the base class of the `Runs` that keep a log. It starts, reads, cancels, takes over and deletes runs.

A subclass decides which process executes a run, and what happens to the runs of a dead process.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, Unpack

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from aswarm._log import runs as log
from aswarm._log.runs import RunRow
from aswarm._log.texts import checked_context, database_text, is_database_text
from aswarm._record.entries import Entry, entries_of, now
from aswarm._record.fold import whole_end
from aswarm._runtime import clocks
from aswarm._sql.liveness import Liveness
from aswarm._sql.processes import Processes
from aswarm._sql.transactions import Transaction, chunks
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError, StoreError
from aswarm._values.text import NO_RUN
from aswarm.conversations import Conflict, Stored
from aswarm.conversations._base import SQLStore

from . import _deleting, _starting
from ._attempt import RunAttempt
from ._lifetime import Lifetime, task_group
from ._live import LiveRun
from ._notifier import Poll
from ._prepared import RunFactory, conversation_key
from ._run import Run
from ._runs import (
    AnswersRefused,
    ConversationNotFound,
    DisconnectPolicy,
    KeyReused,
    Limits,
    NewRun,
    RunActive,
    RunNotFound,
    RunRecord,
    TooManyRuns,
    status_of,
)
from ._starting import Taken

logger = logging.getLogger("aswarm")
_Entries: TypeAlias = list[Entry]  # in the class, `list` is a method
T = TypeVar("T")

_POLICIES: Mapping[str, DisconnectPolicy] = {"finish": "finish", "cancel": "cancel"}
_SECONDS_AFTER_FAILURE = 1.0
_CHECK_EVERY = 1.0  # seconds
_FORGET_EVERY = 60.0
_DELETED_AT_ONCE = 500


class LoggedRuns(Lifetime):
    """Starts, reads and cancels runs, and keeps their entries in a log.

    `_factory`: prepares the runs. `version`: the version of the agents' code.
    """

    _unlimited_user = ""  # whose runs are never deleted because of the limits
    _delete_statements = staticmethod(_deleting.delete)
    version = ""
    store: SQLStore
    _processes: Processes
    _background: TaskGroup  # polls
    _forgetting: Poll
    _tasks: TaskGroup  # executes the attempts; not used by a subclass with a queue

    def __init__(self, factory: RunFactory, store: SQLStore, failover_seconds: float) -> None:
        super().__init__(store._database)
        self._factory, self.store = factory, store
        self.swarm: AsyncSwarm = factory.swarm
        self.agents: Mapping[str, Agent] = factory.agents
        self.limits: Limits = factory.limits
        self._known_agents, self._task_agent = factory.known, factory.task_agent
        self._logs_requests = False
        self._waiting: Counter[str] = Counter()  # for each user, the number of messages that wait for an active run
        self._failover_seconds = failover_seconds

    def _owner(self) -> str | None:
        """Return a unique name for the first attempt of a new run. Return None if a queue assigns the run to a process."""
        return f"{self._processes.name}#{clocks.urandom(6).hex()}"

    def _enqueue(self, run_id: str) -> Transaction[None]:  # noqa: ARG002 - a subclass with a queue reads it
        """Put the run into the queue, in the transaction that records the run. Without a queue, do nothing."""
        yield from ()

    @abstractmethod
    async def _take_over(self) -> bool:
        """Take over the runs of dead processes. Returns True if one of these runs ended."""

    @property
    def _is_failing(self) -> bool:
        return self._database.is_failing

    # --- opening and closing ---

    async def _join(self, stack: AsyncExitStack, processes: Processes, *, holds: bool) -> Liveness | None:
        """Register this process in the database.

        Returns the locks of the processes. `holds`: whether to acquire the lock of this process.
        """
        self._processes = processes
        locks = await stack.enter_async_context(processes.joined(holds=holds))
        self._background = await task_group(stack)
        return locks

    def _watch(self) -> None:
        self._forgetting = Poll("old runs cannot be deleted", _FORGET_EVERY, self._forget_old, is_long=True)
        self._notifier.add(self._forgetting)
        if self._processes.is_shared:
            failure = "the runs of other processes cannot be looked up"
            self._notifier.add(Poll(failure, self._failover_seconds, self._take_over, is_long=True))
        if self._processes.may_lose_lock:
            failure = "the lock of this process cannot be checked"
            self._notifier.add(Poll(failure, _CHECK_EVERY, self._processes.check, is_long=True))
        self._background.start_soon(self._notifier.poll, self._processes, self._background)

    # --- starting ---

    async def start(self, new: NewRun) -> RunRecord:
        """See `Runs.start`."""
        if not isinstance(new, NewRun):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
            raise ConfigurationError(
                f"start() needs a NewRun, such as NewRun('a user', 'a conversation', 'Hi!'), not {type(new).__name__}"
            )
        self._factory.agent(new.agent)
        tries = _starting.Tries()
        while True:
            self._check_open()
            try:
                # Otherwise a cancellation could leave a recorded run that nothing executes.
                with anyio.CancelScope(shield=True):
                    started = await self._start(new, tries)
            except RunActive as active:
                await self._after_active(active, new)
            except Conflict:
                tries.has_changed = True
            except _starting.StartAgain:
                pass
            else:
                await anyio.lowlevel.checkpoint_if_cancelled()
                return started  # pyright: ignore[reportPossiblyUnboundVariable] - nothing cancels the shielded scope

    async def _start(self, new: NewRun, tries: _starting.Tries) -> RunRecord:
        run_id, key = new.run_id or clocks.urandom(16).hex(), ""
        if new.conversation is not None:
            key = conversation_key(new.user, new.conversation)
        found = await self._database.submit(lambda: _starting.look_up(new, run_id, key), reads_only=True, snapshot=True)
        if (same := found.same) is not None:
            if same.user != new.user or same.digest != new.digest:
                raise KeyReused(same.id)
            return record_of(same)
        tries.note(new, found)
        if found.active is not None:
            raise RunActive(found.active)
        stored = found.stored or Stored(
            key, agent=self._factory.agent(new.agent).name, context_variables=checked_context(new.context_variables)
        )
        try:
            if tries.has_changed and new.answers:  # the open calls may be different now
                text = "another program has just changed the conversation; load its open calls again, and answer these"
                raise AnswersRefused(text, code="conflict", status_code=409)
            run = self._factory.prepare(run_id, new, stored, None if found.last is None else found.last.id, found.asked)
        except AnswersRefused:
            if found.last is not None and new.answers and found.last.digest == new.digest:
                return record_of(found.last)  # the request was sent twice
            raise
        owner = self._owner()
        if owner is not None:
            # Without a queue, no other process can execute the run. Raise before the run is recorded, so that the same answer can be
            # sent again, for example to a process of the other version during an upgrade.
            _ = run.agent
        record = RunRecord(
            id=run_id, user=new.user, conversation=new.conversation, agent=run.start.agent, status="running", started_ms=now(),
            digest=new.digest, on_disconnect=new.on_disconnect, last=0, key=new.key, is_new=True, is_queued=owner is None,
        )  # fmt: skip
        return await self._record(_starting.Start(record, run, stored, self.version, owner, self.limits))

    async def _record(self, start: _starting.Start) -> RunRecord:
        self._check_open()
        record, is_over = start.record, anyio.Event()
        self._starts.add(is_over)
        try:
            insert = partial(_starting.insert, start, self._enqueue)
            await self._database.submit(insert, durable=True, notifies=True)
            if start.owner is not None:
                live = LiveRun(record, 1, self._database)
                live.add_first(start.run.first)
                self._notifier.note_start(live)
                self._tasks.start_soon(RunAttempt(self, live, start.run).execute)
        finally:
            self._starts.discard(is_over)
            is_over.set()
        return record

    async def _after_active(self, active: RunActive, new: NewRun) -> None:
        if await self._take_over():
            return
        if new.while_running == "refuse":
            raise active
        most = self.limits.runs_per_user
        if most is not None and self._waiting[new.user] >= most:
            raise TooManyRuns("user")
        self._waiting[new.user] += 1
        try:
            with suppress(RunNotFound), anyio.CancelScope() as scope, self._notifier.stops_scope(scope):
                if new.while_running == "replace":
                    await self._stop(active.run_id, new.user, "replaced")  # the request may answer its calls
                await Run(self, await self.get(active.run_id, user=new.user)).last_entry()
        finally:
            self._waiting[new.user] -= 1
            self._waiting = +self._waiting  # removes zeros

    # --- the runs of this process ---

    async def _retry(
        self, call: Callable[[], Awaitable[T]], on_failure: Callable[[StoreError], object] = lambda _: None
    ) -> T:
        """Repeat the call until the database answers. While this process drains, raise the error instead."""
        while True:
            try:
                return await call()
            except StoreError as failure:
                on_failure(failure)
                if self._notifier.is_draining:
                    raise
                logger.exception("the database cannot be used; another attempt follows", extra=NO_RUN)
                await anyio.sleep(_SECONDS_AFTER_FAILURE)

    def _detach(self, live: LiveRun, last: Entry | None = None) -> None:
        """Remove a run from this process. `last`: the last entry of the run; None if other processes continue the run."""
        if last is None:
            live.detach()
        else:  # only after the commit: a reader that sees the end may start the next run of the conversation
            live.add_last(last)
            live.end()
        self._notifier.note_end(live, last)

    async def _requeue(self, live: LiveRun) -> None:
        """Return a run of this process to the queue."""
        raise NotImplementedError

    # --- reading ---

    async def get(self, run_id: str, *, user: str) -> RunRecord:
        """See `Runs.get`."""
        return await self._find(run_id, user)

    async def get_run(self, run_id: str, *, user: str) -> Run:
        """Return a run of the user. Raises RunNotFound."""
        return Run(self, await self.get(run_id, user=user))

    async def _find(self, run_id: str, user: str | None) -> RunRecord:
        row = None
        if is_database_text(run_id, user):
            row = await self._database.submit(lambda: log.find(run_id, user), reads_only=True)
        if row is None:
            raise RunNotFound(run_id)
        record, live = record_of(row), self._live.get(run_id)
        return record if live is None or live.is_fenced else replace(record, last=max(record.last, live.last_seen))

    async def list(self, *, user: str, conversation: str | None = None, limit: int = 100) -> list[RunRecord]:
        """See `Runs.list`."""
        if not is_database_text(user, conversation):
            return []
        rows = await self._database.submit(lambda: log.of_user(user, conversation, limit), reads_only=True)
        return [record_of(row) for row in rows]

    async def read(self, run_id: str, after: int = -1, *, user: str) -> Sequence[Entry]:
        """See `Runs.read`."""
        live = self._live.get(run_id)
        if live is None or live.record.user != user:
            await self._find(run_id, user)
        while (entries := await self._next(run_id, after, user)) is None:
            pass
        return entries

    async def _next(self, run_id: str, after: int, user: str, seconds: float = math.inf) -> Sequence[Entry] | None:
        """Return entries like `read`. Return None after this number of seconds, or earlier."""
        until = anyio.current_time() + seconds
        while True:
            if (live := self._live.get(run_id)) is not None and (entries := await live.next(after, seconds)) != ():
                return entries
            with self._notifier.watching(run_id) as news:
                changed = news.next(seconds)
                entries = await self._read_log(run_id, after, user)
                if entries is not None:
                    return entries
                self._notifier.poll_soon()
                await changed.wait()
            if self._notifier.is_draining or anyio.current_time() >= until:
                return None

    async def _read_log(self, run_id: str, after: int, user: str) -> Sequence[Entry] | None:
        """Return the next entries from the log: an empty list after the last entry, None if the run is active."""
        rows, is_active = await self._database.submit(lambda: log.read(run_id, after), reads_only=True)
        await anyio.lowlevel.checkpoint()  # `submit` of the database in memory has no checkpoint
        if rows:
            entries = entries_of(rows, after)
            if entries[-1].is_last:
                entries[-1] = await self._last_of(run_id)
            return entries
        if is_active:
            return None
        await self._find(run_id, user)  # it may have been deleted meanwhile
        return ()

    async def _last_of(self, run_id: str) -> Entry:
        """Return the last entry of an ended run with its messages, which only the earlier entries contain.

        Raises RunNotFound if the run was deleted.
        """
        entries = entries_of(await self._database.submit(lambda: log.facts(run_id), reads_only=True))
        if not entries:
            raise RunNotFound(run_id)
        return whole_end(entries)

    async def _recorded(self, run_id: str) -> _Entries:
        return entries_of(await self._database.submit(lambda: log.entries(run_id), reads_only=True))

    async def cancel(self, run_id: str, *, user: str, reason: str = "cancelled") -> RunRecord:
        """See `Runs.cancel`."""
        reason = database_text(reason)
        last = await self._stop(run_id, user, reason)
        record = await self._find(run_id, user)
        if last.response.get("waiting", True):
            await _starting.close_open_calls(self._database, record, reason)
            record = await self._find(run_id, user)
        return record

    async def _stop(self, run_id: str, user: str, reason: str) -> Entry:
        """Stop a run and wait for its end. Returns its last entry. Its open calls stay open."""
        record, live = await self._find(run_id, user), self._live.get(run_id)
        if live is not None:
            live.cancel(reason)
            await live.wait_for_end()
        elif record.is_running:
            await self._database.run(log.request_cancel, run_id, reason)
        return await Run(self, record).last_entry()

    async def forget(self, conversation: str, *, user: str) -> None:
        """See `Runs.forget`."""
        if is_database_text(user, conversation):
            await self._clear(conversation, user, with_conversation=False)

    async def delete_conversation(self, conversation: str, *, user: str) -> None:
        """See `Runs.delete_conversation`."""
        if not is_database_text(user, conversation):
            raise ConversationNotFound(conversation)
        await self._clear(conversation, user)

    async def _clear(self, conversation: str, user: str, **options: Any) -> None:
        """Delete the runs of a conversation in one transaction. `options`: see `_deleting.clear`."""
        conversation_key(user, conversation)  # raises for an invalid id
        ended = await self._database.submit(lambda: _deleting.ended_of(user, conversation), reads_only=True)
        await self._before_delete(ended)
        clear = partial(_deleting.clear, user, conversation, **options)
        deleted = await self._database.submit(clear, durable=True, notifies=True)
        await self._before_delete([run_id for run_id in deleted if run_id not in ended])  # they have ended meanwhile

    async def _before_delete(self, run_ids: Sequence[str]) -> None:
        """Delete what another library has about these ended runs. After a failure, the caller may repeat this."""

    async def _delete(self, run_ids: Sequence[str]) -> None:
        """Delete ended runs. After a failure, the caller may repeat this."""
        for some in chunks(run_ids, _DELETED_AT_ONCE):
            await self._before_delete(some)
            await self._database.run(self._delete_statements, some)

    def _reading(self, record: RunRecord) -> AbstractContextManager[LiveRun | None]:
        return self._notifier.reading(record)

    # --- other processes ---

    async def _take_run(self, run_id: str, **options: Unpack[log.TakeOptions]) -> Taken | None:
        """Start the next attempt of a run in this process. Returns None for an ended run. `options`: see `log.take`."""
        token = clocks.urandom(6).hex()  # the same for all retries, so that they count as one attempt: see `log.take`
        take = partial(_starting.take, run_id, self._processes.name, token, **options)
        # Durable, because readers see the entries of the attempt before they are on the disk: no later attempt may reuse their numbers.
        return await self._retry(lambda: self._database.submit(take, durable=True, notifies=True))

    def _next_attempt(self, taken: Taken) -> RunAttempt:
        row, entries, stored, _ = taken
        if (before := self._live.get(row.id)) is not None:  # the queue has delivered the run again
            before.fence()
            before.detach()
        first = max((row.attempt - 1) * log.ATTEMPT_NUMBERS, row.last + 1)
        live = LiveRun(record_of(row), row.attempt, self._database, first=first)
        self._notifier.note_start(live)
        return RunAttempt(self, live, self._factory.continued(row.id, entries[0], stored), entries)

    async def _forget_old(self) -> None:
        """Delete the ended runs, and stop the waiting runs, that are beyond the limits."""
        surplus = partial(_deleting.surplus, self.limits, but_user=self._unlimited_user)
        old, waiting = await self._database.read(surplus)  # it may read many rows
        await self._delete(old)
        for run_id in waiting:
            with suppress(RunNotFound):
                record = await self._find(run_id, None)
                await _starting.close_open_calls(self._database, record, "too_many_waiting")


def record_of(row: RunRow) -> RunRecord:
    """Return the row of a run as a record."""
    policy, is_queued = _POLICIES.get(row.on_disconnect), row.status == "queued"
    status = "running" if is_queued else status_of(row.status, row.reason)
    return RunRecord(
        id=row.id, user=row.user, conversation=row.conversation, agent=row.agent, status=status, started_ms=row.started,
        ended_ms=row.ended, reason=row.reason, digest=row.digest,
        on_disconnect=float(row.on_disconnect) if policy is None else policy, last=row.last, key=row.key, is_queued=is_queued,
    )  # fmt: skip

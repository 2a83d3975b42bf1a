"""`DurableRuns`: runs that survive their process. Each run is a workflow of the engine; its log is a table beside it.

Decides what happens to runs around their execution: where they begin, who takes over those of a dead process, and what a
process leaves to the others when it ends. What a run does is decided by `stream()`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Literal, Self, TypeVar, cast, overload

import anyio
import anyio.abc
import sniffio

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError, RunError
from aswarm._messages import normalize
from aswarm._run.handlers import NO_RUN
from aswarm._run.options import Messages
from aswarm._swarm import AsyncSwarm
from aswarm.batch import Item
from aswarm.conversations import Conflict, Store
from aswarm.serve._changes import Changes
from aswarm.serve._driving import Driver, Drivers, conversation_key
from aswarm.serve._entries import Entry
from aswarm.serve._live import LiveRun
from aswarm.serve._log import LogRow
from aswarm.serve._log_access import LogAccess
from aswarm.serve._logged_runs import LoggedRuns, ending_of
from aswarm.serve._runs import Limits, NewRun, RunRecord, RunStatus
from aswarm.serve._shutdown import Draining, ShieldedExitStack

from ._attempt import HANDED_BACK
from ._database import Database
from ._durable_run import DurableRun
from ._ends import Ends
from ._engine import Engine, EngineSettings
from ._executions import Executions
from ._failover import Failover
from ._leases import Leases
from ._log import NO_USER, Claim, DurableLog, QueuedWork
from ._map import Plan, run_all
from ._waiting import stop_waiting
from ._work import Work

logger = logging.getLogger("aswarm")
T = TypeVar("T")

_FORGET_EVERY = 60.0
_IDS_AT_ONCE = 500
_SECONDS_AFTER_FAILURE = 1.0
_LOOK_EVERY = 0.05
_LIMITS = Limits(runs_per_user=1_000_000, runs=10_000_000, max_turns=math.inf, seconds=24 * 3600, kept_runs=10_000_000, kept_bytes=2**60, kept_seconds=10 * 365 * 86400)  # fmt: skip


class DurableRuns(LoggedRuns):
    """Runs that continue in another process when theirs dies: `async with DurableRuns(swarm, agents=[...], ...) as runs: ...`.

    `agents`: a list, or a dict by their names; runs and stored conversations know an agent by its name. `store`:
    "sqlite:///runs.db" for the processes of one machine, or "postgresql://user@host/database" for any number of machines. It
    has the runs, their steps, their logs and the conversations. `version`: of the code of the agents. A process executes only
    runs of its own version, so give code that would answer otherwise another one.

    `concurrency`: how many runs this process executes at once, 0 for a process that executes none; others wait in the queue.
    `global_concurrency`: how many all processes together execute at once. `starts_per`: (n, seconds), at most n runs begin in so
    many seconds in all processes together. Both are kept in the database: None leaves what is there, math.inf takes it away.
    `max_deaths`: a run that was executed by so many processes when they died is not executed again. `failover_seconds`: how often
    a process looks for dead ones. `poll_seconds`: how often it looks for what it cannot be told. `threads`: how many DBOS may use.
    `sync`: "full" makes SQLite wait for the disk, so that a power failure loses nothing. `limits`: as of `aswarm.serve`; by default
    there are none but 24 hours for a run. Its seconds count while a process executes the run, from 0 in each process.
    `error_text`: the text of an error for readers.

    Needs the extra `durable`, and asyncio. One that executes runs per process: DBOS, the engine, is one object for the process. If
    your program has started DBOS, that one is used, with its database for the steps.

    Raises ConfigurationError for a URL or a number that cannot be used, and for a missing package; when it is opened, for a
    database that cannot be used, without asyncio, and if this process executes durable runs already.
    """

    _left_because = HANDED_BACK

    def __init__(
        self,
        swarm: AsyncSwarm,
        *,
        agents: Agent | Iterable[Agent] | Mapping[str, Agent],
        store: str,
        version: str,
        concurrency: int = 50,
        global_concurrency: float | None = None,
        starts_per: tuple[float, float] | None = None,
        max_deaths: int = 5,
        failover_seconds: float = 3,
        poll_seconds: float = 0.1,
        threads: int = 32,
        sync: Literal["normal", "full"] = "normal",
        limits: Limits = _LIMITS,
        error_text: Callable[[BaseException], str] | None = None,
    ) -> None:
        if not version or not isinstance(version, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError("version must be a text, such as the date or the commit of the agents' code")
        _check_least(0, concurrency=concurrency)
        _check_least(1, max_deaths=max_deaths, threads=threads, global_concurrency=global_concurrency)
        _check_least(0.001, failover_seconds=failover_seconds, poll_seconds=poll_seconds)
        if starts_per is not None:
            number, seconds = starts_per
            _check_least(1, **{"the number of starts_per": number})
            _check_least(0.001, **{"the seconds of starts_per": seconds})
            if math.isinf(seconds):
                raise ConfigurationError("the seconds of starts_per must have an end")
        self.version = version
        self.concurrency = concurrency
        self._max_deaths = max_deaths
        self._failover_seconds = failover_seconds
        self._database = Database(store, sync)
        super().__init__(Drivers(swarm, self._database.conversations(), agents, limits, error_text), limits)
        self._executor = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(6).hex()}"
        self._engine_settings = EngineSettings(
            self._database.url, version, self._executor, poll_seconds, threads, sync, works=concurrency > 0
        )
        self._shared_limits = {"concurrency": (global_concurrency, 0.0), "starts": starts_per or (None, 0.0)}
        self._executions: Executions
        self._log: DurableLog
        self._leases: Leases
        self._engine: Engine
        self._failover: Failover
        self._ends = Ends(lambda run_ids: self._access.call(self._log.ended, run_ids))

    def as_client(self) -> DurableRuns:
        """Let this process execute none of the runs: it starts, reads, cancels and answers them. Returns this object.

        Raises RuntimeError if the runs are open.
        """
        if self._is_open:
            raise RuntimeError("these runs are open; make the client first")
        self.concurrency = 0
        self._engine_settings = replace(self._engine_settings, works=False)
        return self

    # --- the life of this object ---

    @property
    def store(self) -> Store:
        """The conversations."""
        return self.drivers.store

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise RuntimeError("these runs are open already; share this object")
        if sniffio.current_async_library() != "asyncio":
            raise ConfigurationError("durable runs work on asyncio only, because DBOS does")
        self.draining, self._deadline = Draining(), math.inf
        self._executions = Executions(self, self.concurrency)
        failure: Exception | None = None
        async with ShieldedExitStack() as stack:
            await self._open_log(stack)
            failure = await self._open_engine(stack)
            if failure is None:
                self._resources, self._is_open = stack.pop_all(), True
        if failure is not None:
            raise failure
        return self

    async def _open_log(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(cast("Any", self.store))
        if self._engine_settings.works:
            self._executor = Engine.executor_of_host() or self._executor
        log = await anyio.to_thread.run_sync(self._database.log, self._executor)
        stack.callback(log.close)
        self._log = log  # pyright: ignore[reportIncompatibleVariableOverride]
        for name, (amount, seconds) in self._shared_limits.items():
            if amount is not None:
                await anyio.to_thread.run_sync(log.limit, name, amount, seconds)
        self._access = LogAccess(log)
        self._changes = Changes(lambda: self._access.call(log.data_version), seconds=0.05, errors=log.errors)
        self._leases = self._database.leases(log, self._executions.leave_lost)
        await self._leases.hold(self._executor)
        stack.push_async_callback(self._leases.aclose)
        stack.push_async_callback(self._put_back_all)

    async def _put_back_all(self) -> None:
        with self._logged("the runs of this process cannot be put back; they are taken over like those of a dead one"):
            await self._access.call(self._log.put_back_all)

    async def _open_engine(self, stack: AsyncExitStack) -> Exception | None:
        """Start everything that works in the background. Returns what has failed: a task group would wrap what is raised."""
        self._background = await _started(
            stack, self._access.write_all, self._leases.watch, self._touch, self._watch_ends
        )
        engine = self._engine = Engine(self._engine_settings, self._executions.execute)
        stack.push_async_callback(engine.aclose)
        self._failover = Failover(self._log, self._access, self._leases, engine)
        try:
            await engine.open()
            await self._failover.adopt(self._executor)  # of an earlier process with this id: that of the host's DBOS
            await self._executions.warn()
        except Exception as error:  # noqa: BLE001 - the caller raises it
            return error
        await _started(stack, self._poll, self._keep, self._executions.claim_all)
        self._changes.wake_poller()
        return None

    async def _poll(self) -> None:
        await self._changes.poll(self._on_change, lambda: True)

    async def drain(self, seconds: float) -> None:
        """Start no more runs here. Those that run after so many seconds are left to the other processes, or to the next one.

        A function that still runs then is cancelled; the model is told that the outcome of its call is unknown. A second call
        does not wait longer than the first.
        """
        await super().drain(seconds)

    # --- starting ---

    @overload
    async def start(self, new: NewRun) -> RunRecord: ...

    @overload
    async def start(
        self,
        new: str,
        messages: Messages,
        context_variables: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        user: str = "",
        conversation: str | None = None,
        key: str | None = None,
    ) -> DurableRun: ...

    async def start(
        self,
        new: NewRun | str,
        messages: Messages = (),
        context_variables: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        user: str = "",
        conversation: str | None = None,
        key: str | None = None,
    ) -> RunRecord | DurableRun:
        """Start a run of the agent with this name; or return the one that has this `run_id`, or `key`, already.

        `messages`: a str is one of the user. `conversation`: the id of one that the run continues; by default the run begins
        one of its own, with its id. `user`: whose run it is. With a `NewRun`, it is the method of `aswarm.serve.Runs`.

        Raises what `Runs.start` raises: KeyReused for an id that was used for something else, and ConfigurationError for
        context variables that are not JSON.
        """
        if isinstance(new, NewRun):
            return await super().start(new)
        run_id = os.urandom(16).hex() if run_id is None else run_id
        asked = NewRun(
            user or NO_USER,
            run_id if conversation is None else conversation,
            normalize(messages),
            agent=new,
            run_id=run_id,
            key=key,
            context_variables=context_variables,
        )
        return DurableRun(self, await super().start(asked))

    async def run(self, run_id: str, *, user: str = "") -> DurableRun:
        """The run with this id. Raises RunNotFound."""
        return DurableRun(self, await self.get(run_id, user=user or NO_USER))

    async def find(self, run_id: str) -> DurableRun:
        """The run with this id, of any user: for tools of an operator. Raises RunNotFound."""
        return DurableRun(self, await self._access.call(self._log.any_record, run_id))

    async def records(
        self, *, status: RunStatus | Literal["waiting"] | None = None, limit: int = 100
    ) -> list[RunRecord]:
        """The newest runs of all users, or those with this status: for tools of an operator.

        "waiting": those that have finished with calls that wait for an answer, and have got none yet.
        """
        return await self._access.call(self._log.all_records, status, limit)

    async def _begin(self, new: NewRun, driver: Driver) -> RunRecord:
        record = await super()._begin(new, driver)
        # Another process is about to start this run, or has died at that: then the run is not recorded, and begins here.
        while record.last < 0 and record.is_running and not record.is_new and record.id not in self._live:
            self._check_open()
            await self._close_expired()
            await anyio.sleep(_LOOK_EVERY)
            record = await super()._begin(new, driver)
        return record

    async def _write_first(self, live: LiveRun, driver: Driver, first: Entry) -> None:
        agent = driver.new.agent or self.drivers.agent(None).name
        work = Work(replace(driver.new, agent=agent), driver.stored, driver.last_run)
        queued = QueuedWork(self.version, work.stored.agent or agent, work.to_json())
        row = LogRow(first.seq, first.seq, first.to_json())
        is_claimed = False
        try:
            claims = self._executions.reserve(live.record.id)
            is_claimed = await self._access.call(self._log.begun, live.record.id, row, queued, claims=claims)
        finally:
            if not is_claimed:
                self._executions.release(live.record.id)

    async def _launch(self, live: LiveRun, driver: Driver) -> None:  # noqa: ARG002 - others need it
        if self._executions.is_reserved(live.record.id):
            await self._executions.begin(Claim(live.record.id, is_first=True))
        else:
            self._executions.leave(live.record.id)
            self._executions.look()

    # --- executing ---

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat the call until the database answers. While this process drains, a failure raises CancelledError: others continue."""
        errors: tuple[type[Exception], ...] = (RunError, *self._log.errors)
        while True:
            try:
                return await call()
            except Conflict:
                raise
            except errors:
                logger.exception("the database cannot be used; another attempt follows", extra=NO_RUN)
                if self.draining.is_set:
                    raise asyncio.CancelledError from None
                await anyio.sleep(_SECONDS_AFTER_FAILURE)

    async def _write_end(self, live: LiveRun, last: Entry) -> None:
        while not await self._access.end(live, last, ending_of(last)):
            if self.draining.is_set:
                live.fence()
                raise asyncio.CancelledError  # another process continues the run, at its last step

    # --- the other methods of `Runs` ---

    async def cancel(self, run_id: str, *, user: str, reason: str = "cancelled") -> RunRecord:
        """See `Runs.cancel`. A run that waits for an answer is stopped too, and its calls are closed."""
        record = await self.get(run_id, user=user)
        if record.reason == "waiting":
            await stop_waiting(self._log, self._access, self.store, record, reason)
        if record.is_running and run_id not in self._live:
            await self._access.call(self._log.ask_cancel, run_id, reason)
            await self._apply_cancel_requests()
        return await super().cancel(run_id, user=user, reason=reason)

    async def _on_change(self) -> None:
        self._executions.look()
        await self._apply_cancel_requests()

    async def _apply_cancel_requests(self) -> None:
        """Stop the runs that are asked to stop: those that run here, and those that this process has put into the queue."""
        for run_id, reason in (await self._access.call(self._log.asked_to_cancel)).items():
            if live := self._live.get(run_id):
                live.cancel(reason)
                continue
            with self._logged("a run that is to be stopped cannot be; another attempt follows"):
                await self._executions.close(run_id, reason)

    # --- other processes ---

    async def _keep(self) -> None:
        """Take over the runs of dead processes, and delete old ones; without end."""
        forgotten = anyio.current_time()
        while True:
            try:
                await self._executions.put_back_lost()
                await self._close_expired()
                await self._apply_cancel_requests()  # those that were adopted may be asked to stop
                if self.limits is not _LIMITS and anyio.current_time() - forgotten > _FORGET_EVERY:
                    forgotten = anyio.current_time()
                    await self._forget_old()
            except Exception:  # of the database, in the words of any of three packages
                logger.exception(
                    "the runs of other processes cannot be looked up; another attempt follows", extra=NO_RUN
                )
            await anyio.sleep(self._failover_seconds)

    async def _close_expired(self) -> bool:
        is_over = await self._failover.take_over()
        self._executions.look()
        return is_over

    # --- deleting ---

    async def purge(self, older_than: float) -> int:
        """Delete the runs that ended so many seconds ago or before, with their logs and steps. Returns how many.

        The conversation that a run has begun for itself goes with the last of its runs; `runs.store.purge(older_than)` deletes
        others. A run that waits for an answer stays: answer or cancel it first.
        """
        run_ids, conversations = await self._access.call(self._log.purgeable, older_than)
        for user, conversation in conversations:
            await self.store.delete(conversation_key(user, conversation))
        await self._delete(run_ids)
        return len(run_ids)

    async def _delete(self, run_ids: Sequence[str]) -> None:
        # The log comes last: it says what is to be deleted, if this has to be repeated.
        for at in range(0, len(run_ids), _IDS_AT_ONCE):
            some = run_ids[at : at + _IDS_AT_ONCE]
            await self._engine.delete(some)
            await super()._delete(some)

    # --- many ---

    async def wait_for(self, record: RunRecord) -> None:
        """Wait until a run has ended, here or in another process. Raises RuntimeError if these runs are closed before."""
        while (live := self._live.get(record.id)) is not None and not live.is_fenced:
            await live.ended.wait()
        await self._ends.wait(record.id)

    async def _watch_ends(self) -> None:
        await self._ends.watch(self._log.errors)

    def map(
        self,
        agent: str,
        items: Iterable[Messages | Item] | AsyncIterable[Messages | Item],
        *,
        run_ids: Iterable[str] | Callable[[int], str] | None = None,
        concurrency: int = 100,
        context_variables: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[DurableRun, None]:
        """Run an agent for each item, in all processes together. Yields the runs as they end.

        `agent`: its name. `items`: messages, or `Item`s of `aswarm.batch`; an agent of an item must be one of `agents`. `run_ids`: an
        id for each item, or a function of its position, from 0; without it, the ids of the items. With the same ids, a second
        call continues the first: a run that has ended is yielded again, and nothing runs twice. `concurrency`: how many runs
        are started and have not ended. `context_variables`: of all runs; those of an item are laid over them.

        Raises ConfigurationError for an item without an id, and for one with `resume=`: `DurableRun.answer` continues a run that waits.
        """
        return run_all(self, Plan(agent, run_ids, concurrency, context_variables or {}), items)


async def _started(stack: AsyncExitStack, *works: Callable[[], Coroutine[Any, Any, None]]) -> anyio.abc.TaskGroup:
    """A task group with these works, which last until the stack ends."""
    group = await stack.enter_async_context(anyio.create_task_group())
    stack.callback(group.cancel_scope.cancel)
    for work in works:
        group.start_soon(work)
    return group


def _check_least(least: float, **given: float | None) -> None:
    for name, value in given.items():
        if value is not None and not value >= least:
            raise ConfigurationError(f"{name} must be at least {least}, not {value!r}")

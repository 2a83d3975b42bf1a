"""`DurableRuns`: runs in a queue. Any process that shares the database can execute them.

Runs are recorded and replayed as in `LocalRuns`. DBOS only assigns them to processes.

`DurableRuns.map` starts a run for each of many items. If the caller stops reading, started runs continue.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import socket
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Literal, TypeVar

import anyio
import sniffio

from aswarm._log import runs as log
from aswarm._record.entries import Entry
from aswarm._record.entry_maker import ErrorText
from aswarm._runtime import clocks
from aswarm._sql.transactions import Transaction
from aswarm._swarm import AsyncSwarm, require_client
from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError, RunError, StoreError
from aswarm._values.run_keywords import Messages
from aswarm._values.text import NO_RUN
from aswarm.batch import Item
from aswarm.runs import ConversationNotFound, Limits, Run, RunActive, RunRecord, Runs
from aswarm.runs.executors import NO_USER, Execution, purgeable

from ._connections import store_of
from ._dbos import Engine, EngineSettings, check_least, executor_of_host

T = TypeVar("T")


async def run_all(
    items: AsyncIterator[tuple[str, Item]], run: Callable[[str, Item], Coroutine[Any, Any, T]], concurrency: int
) -> AsyncGenerator[T, None]:
    """Run the items concurrently, and yield each result when it is ready. `items`: pairs of a run id and an item."""
    reading: set[asyncio.Task[tuple[str, Item] | None]] = set()  # at most one task, which reads the next item
    running: set[asyncio.Task[T]] = set()
    is_open = True
    try:
        while is_open or running:
            if is_open and not reading and len(running) < concurrency:
                reading.add(asyncio.create_task(_next(items)))
            done, _ = await asyncio.wait({*running, *reading}, return_when=asyncio.FIRST_COMPLETED)
            for task in reading & done:
                reading.remove(task)
                if (item := task.result()) is None:
                    is_open = False
                else:
                    running.add(asyncio.create_task(run(*item)))
            for finished in running & done:
                running.remove(finished)
                yield finished.result()
    finally:
        remaining: list[asyncio.Task[Any]] = [*running, *reading]
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


async def named(
    items: Iterable[Messages | Item] | AsyncIterable[Messages | Item],
    run_ids: Iterable[str] | Callable[[int], str] | None,
) -> AsyncGenerator[tuple[str, Item]]:
    """Yield pairs of a run id and an item. For the parameters, see `DurableRuns.map`."""
    ids = None if run_ids is None else map(run_ids, count()) if callable(run_ids) else iter(run_ids)
    async for value in items if isinstance(items, AsyncIterable) else _each(items):
        item = value if isinstance(value, Item) else Item(value)
        yield _id_of(item, ids), item


def _id_of(item: Item, ids: Iterator[str] | None) -> str:
    if item.resume is not False:
        raise ConfigurationError("an item of map cannot have resume=; call answer() of the waiting run")
    run_id = item.id if ids is None else next(ids, None)
    if run_id is None:
        raise ConfigurationError("map needs an id for each item: pass run_ids=, or Item(..., id=...)")
    return str(run_id)


async def _each(items: Iterable[Messages | Item]) -> AsyncGenerator[Messages | Item]:
    for item in items:
        yield item


logger = logging.getLogger("aswarm")


class DurableRuns(Runs):
    """Runs that continue in another process if their process dies: `async with DurableRuns(swarm, agents=[...], ...) as runs:`.

    This class needs asyncio and the extra `durable`. Only one `DurableRuns` of a process can execute runs, because a process
    can have only one DBOS. If your program has already started DBOS, `DurableRuns` uses this DBOS and its database.

    Args:
        swarm: The swarm that runs the agents.
        agents: A list, or a dict by name. Runs and stored conversations refer to an agent by its name.
        store: The database of the runs and the conversations: "sqlite:///runs.db" for the processes of one machine, or
            "postgresql://user@host/database" for any number of machines.
        version: The version of the agents' code. Change it whenever you change the agents, because a process executes only
            runs of its own version.
        queue: The name of the queue. Programs that share a database need different names.
        concurrency: The limit of concurrent runs in each process; with 0, this process executes no runs. The queue stores
            `concurrency` and `poll_seconds`, and all processes use the values of the process that opened the queue last.
        global_concurrency: The limit of concurrent runs in all processes together. None keeps the limit of the queue, math.inf
            removes it.
        starts_per: (n, seconds): at most n runs start in this time, in all processes together. None keeps the limit of the
            queue, n = math.inf removes it.
        max_deaths: After this number of processes have died while they executed a run, the run fails.
        failover_seconds: The interval of the check for dead processes.
        poll_seconds: The interval of the check for queued runs.
        threads: The number of threads of DBOS.
        sync: When SQLite waits for the disk. "full": at each commit. "normal": at the start and the end of a run, and at the
            start of a call.
        limits: See `Limits`. By default, there is no limit.
        error_text: See `LocalRuns`.
        task_agent: See `LocalRuns`.

    Raises:
        ConfigurationError: For an invalid URL or number, or if a package is missing. `async with` raises it if the database
            cannot be used, if the event loop is not asyncio's, or if this process already executes durable runs.
    """

    def __init__(
        self,
        swarm: AsyncSwarm,
        *,
        agents: Agent | Iterable[Agent] | Mapping[str, Agent],
        store: str,
        version: str,
        queue: str = "aswarm",
        concurrency: int = 50,
        global_concurrency: float | None = None,
        starts_per: tuple[float, float] | None = None,
        max_deaths: int = 5,
        failover_seconds: float = 3,
        poll_seconds: float = 0.1,
        threads: int = 32,
        sync: Literal["normal", "full"] = "normal",
        limits: Limits = Limits(),  # noqa: B008 - frozen
        error_text: ErrorText | None = None,
        task_agent: Agent | None = None,
    ) -> None:
        if not version or not isinstance(version, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError("version must be a text, such as the date or the commit of the agents' code")
        check_least(0, concurrency=concurrency)
        check_least(1, max_deaths=max_deaths)
        check_least(0.001, failover_seconds=failover_seconds)
        super().__init__(
            swarm, agents=agents, store=store_of(store, sync), version=version, limits=limits,
            failover_seconds=failover_seconds, error_text=error_text, task_agent=task_agent,
        )  # fmt: skip
        self.concurrency = concurrency
        self._max_deaths = max_deaths
        self._name = f"{socket.gethostname()}-{os.getpid()}-{clocks.urandom(6).hex()}"
        self._settings = EngineSettings(
            url=store,
            queue=queue,
            version=version,
            executor=self._name,
            works=concurrency > 0,
            concurrency=concurrency or None,
            global_concurrency=global_concurrency,
            limiter=starts_per,
            poll_seconds=poll_seconds,
            threads=threads,
            synchronous=sync,
        )
        self._engine: Engine
        registry = self.registry
        registry.deleter.unlimited_user, registry.deleter.before = NO_USER, self._delete_from_queue
        registry.end_of = self._wait_for_end
        registry.holds_lock = False  # the engine acquires it when DBOS can use the database
        self._last_attempts: anyio.Lock

    def _as_client(self) -> DurableRuns:
        """Execute no runs in this process, which can still start, read, cancel and answer runs. Returns this object.

        Call this method before `async with`; later, it raises RuntimeError.
        """
        if self.is_open:
            raise RuntimeError("these runs are already open; call _as_client() before `async with`")
        self.concurrency = 0
        self._settings = replace(self._settings, works=False)
        return self

    # --- opening and closing ---

    async def prepare(self, stack: AsyncExitStack) -> None:
        """Open the store, and find the name of this process."""
        if sniffio.current_async_library() != "asyncio":
            raise ConfigurationError("durable runs work on asyncio only, because DBOS does")
        if self._settings.works:
            require_client(self.swarm)
        await stack.enter_async_context(self.store)
        name = (executor_of_host() if self._settings.works else None) or self._name
        self._settings, self.registry.process_name = replace(self._settings, executor=name), name

    async def _warn(self) -> None:
        """Log warnings: for queued runs that this process cannot execute, and for limits of this process alone."""
        agents = list(self.known_agents)
        out_of_reach = await self.registry.database.submit(
            lambda: log.out_of_reach(self.version, agents), reads_only=True
        )
        for version, agent, number in out_of_reach:
            logger.warning(
                "%d queued runs need the version %r and the agent %r; they wait for a process that has both (this process has the "
                "version %r)",
                number, version, agent, self.version, extra=NO_RUN,
            )  # fmt: skip
        if self.swarm._rate_limiter.has_limits:  # noqa: SLF001 - a warning about limits
            logger.warning(
                "the RateLimits of the swarm apply to this process alone; divide them by the number of processes, or limit the "
                "runs of all processes with global_concurrency or starts_per",
                extra=NO_RUN,
            )

    async def drain(self, seconds: float) -> None:
        """Start no more runs in this process. After this number of seconds, return its unfinished runs to the queue.

        Then a function that is still running is cancelled, and the outcome of its call is unknown. A second call can shorten
        the time, but not extend it.
        """
        if self.is_open:
            self._engine.stop_listening()
        await super().drain(seconds)

    # --- the decisions of an executor ---

    async def open(self, stack: AsyncExitStack) -> None:
        """Open the engine, which executes the runs of the queue."""
        self._last_attempts = anyio.Lock()
        assert self.registry.locks is not None  # noqa: S101 - only the database in memory has no locks
        self._engine = Engine(self._settings, self._execute, self.registry.locks)
        stack.push_async_callback(self._engine.aclose)
        await self._engine.open()
        if self._settings.works:
            await self._warn()

    def enqueue(self, run_id: str) -> Transaction[None]:
        """Add the run to the queue of DBOS."""
        yield (lambda connection: self._engine.enqueue(connection, run_id)), ()

    def stop(self, attempt: Execution) -> None:
        """Return the run to the queue."""
        attempt.requeue()

    async def recover(self, run_id: str) -> bool:
        """Return a run to the queue if its process is dead, because there may be no worker that does this."""
        owner = await self.registry.database.submit(lambda: log.owner_of(run_id), reads_only=True)
        async with self.registry.processes.dead(owner) as is_dead:
            if is_dead:
                await self.registry.database.run(log.release_dead, owner, [run_id])
        return False

    async def take_over(self) -> bool:
        """Return the runs of dead workers to the queue."""
        if self._settings.works:
            for executor, run_ids in (await self._engine.take_over()).items():
                if executor != self._settings.executor:
                    logger.info("the process %s died; its runs are taken over: %s", executor, run_ids, extra=NO_RUN)
                    await self.registry.database.run(log.release_dead, executor, run_ids)
        return False

    # --- executing ---

    async def _execute(self, run_id: str) -> None:
        """Execute one attempt of a run, in a task of the engine. Raises CancelledError if the run has not ended."""
        async with AsyncExitStack() as stack:
            attempt = await self.take(run_id, most_deaths=max(0, self._max_deaths - 2))
            if attempt is not None and not attempt.has_started:
                # With `max_deaths` - 1 deaths, this is the last attempt of the run. This process executes such attempts one
                # at a time: if a run kills the process again, no other run loses its last attempt.
                await stack.enter_async_context(self._last_attempts)
                attempt = await self.take(run_id)
            if attempt is None:
                if self.is_draining:
                    raise asyncio.CancelledError
                return
            if attempt.record.agent not in self.known_agents:
                await attempt.release()
                raise asyncio.CancelledError  # the engine requeues the run later
            # In an empty context: otherwise, if the run starts other workflows, DBOS would record them as steps of its workflow.
            # In a task of its own, which does not resume this frame at each of its awaits.
            await asyncio.get_running_loop().create_task(self._work_of(attempt), context=contextvars.Context())
            if attempt.is_superseded:
                raise asyncio.CancelledError  # otherwise DBOS would record the end of a run that another attempt continues

    def _work_of(self, attempt: Execution) -> Coroutine[Any, Any, None]:
        """Return the coroutine that executes an attempt or closes its run."""
        if attempt.cancel_reason is not None:
            return attempt.close(attempt.cancel_reason)
        if attempt.deaths < self._max_deaths:
            return attempt.execute()
        reason = f"{attempt.deaths} processes died while they executed this run, so it is not executed again"
        logger.error("the run %s failed: %s", attempt.record.id, reason, extra=attempt.record.log_fields)
        return attempt.close("", RunError(reason))

    # --- the other methods of `Runs` ---

    async def stop_run(self, run_id: str, user: str, reason: str) -> Entry:
        """Stop a run and wait for its end. A queued run ends at once."""
        record = await self.get(run_id, user=user)
        if record.is_running and not record.is_queued and run_id not in self.registry.live:
            await self.recover(run_id)
            record = await self.get(run_id, user=user)
        if record.is_queued and (record.last <= 0 or record.agent in self.known_agents):
            await self.registry.whole(partial(self._end_queued, run_id, reason)).join()
        return await super().stop_run(run_id, user, reason)

    async def _end_queued(self, run_id: str, reason: str) -> None:
        attempt = await self.take(run_id, is_queued=True)  # a process may have started the run since it was read
        if attempt is not None and attempt.has_started:
            await attempt.close(reason)
            with suppress(StoreError):  # otherwise the start of an ended run counts for `starts_per`
                await self._engine.delete([run_id])

    async def release(self, run_id: str) -> None:
        """Return a run of a hanging process to the queue, for the tools of an operator. Raises RunNotFound.

        The hanging process can no longer write to the run. But the functions of the run may still be running in that process.
        """
        self.check_open()
        await self.registry.whole(partial(self._release, run_id)).join()

    async def _release(self, run_id: str) -> None:
        attempt = await self.take(run_id)
        if attempt is None:
            await self.registry.find(run_id, None)
            return
        await attempt.release()
        await self._engine.requeue([run_id])

    # --- deleting ---

    async def purge(self, *, older_than_seconds: float) -> int:
        """Delete the runs that ended at least `older_than_seconds` ago, with their logs. Returns their number.

        A conversation that `start` created is deleted with the last of its runs; `runs.store.purge(...)` deletes the
        other conversations. A run that waits for an answer is not deleted; answer or cancel it first.
        """
        run_ids, conversations = await self.registry.database.read(partial(purgeable, older_than_seconds))
        for user, conversation in conversations:
            with suppress(ConversationNotFound, RunActive):  # a new message keeps its conversation
                await self.registry.deleter.clear(conversation, user, only=run_ids)
        await self.registry.deleter.delete(run_ids)
        return len(run_ids)

    async def _delete_from_queue(self, run_ids: Sequence[str]) -> None:
        # Delete the rows of DBOS before the log: if `purge` fails in between, a repeated purge still finds the runs in the log.
        await self._engine.delete(run_ids)

    # --- many runs ---

    async def _wait_for_end(self, record: RunRecord) -> Entry | None:
        return await self.registry.notifier.end_of(record.id)  # None if another process has ended the run

    def map(
        self,
        agent: str | Agent,
        items: Iterable[Messages | Item] | AsyncIterable[Messages | Item],
        *,
        run_ids: Iterable[str] | Callable[[int], str] | None = None,
        concurrency: int = 100,
        context_variables: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[Run, None]:
        """Run an agent for each item. All processes execute the runs. Yields each run when it ends.

        A second call with the same ids continues the first call: it also yields the finished runs, and runs no item twice.

        Args:
            agent: The agent, or its name.
            items: Messages, or `Item`s of `aswarm.batch`. The agent of an item must be one of the `agents` of this object.
            run_ids: An id for each item, or a function that returns the id for a position, from 0. By default, the ids of the
                items.
            concurrency: The number of runs of this call that are active at once.
            context_variables: The context variables of all runs; the variables of an item override them.

        Raises:
            ConfigurationError: If an item has no id, or has `resume=` (use `Run.answer` for a run that waits).
        """
        check_least(1, concurrency=concurrency)

        async def run(run_id: str, item: Item) -> Run:
            name = agent if item.agent is None else item.agent.name
            context = {**(context_variables or {}), **(item.context_variables or {})}
            started = await self.start(name, item.messages, context, run_id=run_id)
            await started.wait()
            return started

        return run_all(named(items, run_ids), run, concurrency)

"""DBOS as the executor of runs: it only decides which process executes a run, and when.

A run is a DBOS workflow without steps. Its only argument is the id of the run. All workers of a program share one DBOS queue.
When this module moves workflows to the queue, DBOS does not check their status or process. So two processes may execute one run,
and the record of the run refuses the older attempt.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import anyio
from anyio.to_thread import run_sync as in_thread

from aswarm._sql.processes import Liveness
from aswarm._values.errors import ConfigurationError, StoreError

from ._connections import Borrower, check_sqlite, close_pool, connection_pool, has_millisecond_times, may_pass

logger = logging.getLogger("aswarm")
Execute = Callable[[str], Coroutine[Any, Any, None]]

_APP = "aswarm"
_WORKFLOW = "aswarm.run"
_LIMITS = ("worker_concurrency", "global_concurrency", "limiter", "polling_interval_sec")
_SECONDS_TO_OPEN = 10.0
_CHECKS = 10  # the number of checks after which a dequeued run that has never started here is requeued
_working: list[Engine] = []  # the engine that executes runs; at most one, because a process has only one DBOS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The settings of an `Engine`.

    `url`: the URL of the database, for SQLAlchemy. `queue`: the name of the queue, different for each program. `executor`: the
    id of this process. `works`: whether this process executes runs. `concurrency`: the limit of concurrent runs in each worker.
    `global_concurrency`: the limit of concurrent runs in all workers together. `limiter`: `(starts, seconds)`, the limit of
    starts in this number of seconds. For the last two limits, None keeps the limit of the queue, and math.inf removes it.
    `poll_seconds`: the seconds between two polls of the queue. `threads`: the number of threads of DBOS.

    Raises ConfigurationError for an invalid number.
    """

    url: str
    queue: str
    version: str
    executor: str
    works: bool = True
    concurrency: int | None = None
    global_concurrency: float | None = None
    limiter: tuple[float, float] | None = None
    poll_seconds: float = 0.1
    threads: int = 8
    synchronous: Literal["normal", "full"] = "full"

    def __post_init__(self) -> None:
        number, seconds = self.limiter or (None, None)
        check_least(1, threads=self.threads, global_concurrency=self.global_concurrency)
        check_least(0.001, poll_seconds=self.poll_seconds)
        check_least(1, **{"the number of starts_per": number})
        check_least(0.001, **{"the seconds of starts_per": seconds})
        if seconds == math.inf:
            raise ConfigurationError(
                "the seconds of starts_per must be finite; to remove the limit, use math.inf as the number of starts"
            )


def check_least(least: float, **numbers: float | None) -> None:
    """Raise ConfigurationError if one of the numbers is below `least`."""
    for name, value in numbers.items():
        if value is not None and not value >= least:
            raise ConfigurationError(f"{name} must be at least {least}, not {value!r}")


class Engine:
    """The queue of the runs. With `works`, it also executes runs in this process.

    `execute`: executes one attempt of a run. It raises CancelledError if the run has not ended, because the run continues later
    or in another process.
    """

    def __init__(self, settings: EngineSettings, execute: Execute, liveness: Liveness) -> None:
        self._settings = settings
        self._execute = execute
        self._liveness = liveness
        self._database: Any = None  # the engine of SQLAlchemy, shared by the client and by DBOS
        self._borrower = Borrower(settings.url)
        self._client: Any = None
        self._app = ""
        self._dbos: Any = None  # the DBOS of this engine; None if the program has launched a DBOS
        self._is_stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._running: dict[str, int] = {}
        self._strays: dict[str, int] = {}  # the number of checks in a row without an execution, by run
        self._left: set[str] = set()  # the runs whose execution here has ended, but not the run

    # --- opening and closing ---

    async def open(self) -> None:
        """Connect, and create the tables of DBOS and the queue.

        A worker also acquires the lock of this process, and listens to the queue. If the database cannot be reached, this
        retries for ten seconds and then raises StoreError; any other error of the database is raised at once. Raises
        ConfigurationError if this process already has a worker, or if the host (the program) has launched a DBOS with other
        settings.
        """
        ends = anyio.current_time() + _SECONDS_TO_OPEN
        while True:
            try:
                await self._open()
            except self._borrower.error as error:
                if anyio.current_time() > ends or not may_pass(error):
                    raise StoreError(f"DBOS cannot use its database: {error}") from error
                await anyio.sleep(0.2)
            else:
                return

    async def _open(self) -> None:
        settings, self._is_stopping = self._settings, False
        if settings.works and _working:
            raise ConfigurationError(
                "this process already has a durable worker, and it can have only one DBOS; share the worker, or use another process"
            )
        host = _dbos_of_host() if settings.works else None
        if settings.works:
            _working.append(self)
        try:
            await in_thread(self._connect, host)
            if settings.works:
                await self._work(host)
        except BaseException:
            await self.aclose()
            raise

    def _connect(self, host: Any) -> None:
        from dbos import DBOS, DBOSClient, DBOSPortableJSONSerializer  # noqa: PLC0415 - of an extra

        settings = self._settings
        DBOS.migrate(settings.url)
        self._database = connection_pool(settings.url, settings.threads, settings.synchronous)
        if settings.url.startswith("sqlite"):
            check_sqlite(settings.url, needed=has_millisecond_times(self._database))
        self._app = _application(self._database, settings.queue) if host is None else _fitting(host, settings)
        # The DBOS of a host can read this format, whichever serializer it uses.
        client = functools.partial(DBOSClient, serializer=DBOSPortableJSONSerializer(), application_name=self._app)
        self._client = client(system_database_engine=self._database)
        self._borrower.client = client(system_database_engine=self._borrower.engine, lazy=True)
        self._register()
        if host is not None and not _sees(host, self._client, settings.executor):
            raise ConfigurationError("the DBOS of this process uses another database; use the same database for both")
        if settings.works:
            self._liveness.hold(settings.executor)

    async def _work(self, host: Any) -> None:
        from dbos import DBOS, DBOSPortableJSONSerializer  # noqa: PLC0415 - of an extra

        _workflow()
        if host is not None:
            return
        settings = self._settings
        config: Any = {
            "name": self._app,
            "system_database_url": settings.url,
            "system_database_engine": self._database,
            "application_version": settings.version,
            "executor_id": settings.executor,
            "serializer": DBOSPortableJSONSerializer(),
            "max_executor_threads": settings.threads,
            "notification_listener_polling_interval_sec": 0.2,  # short, because `destroy` waits for the next poll
            "scheduler_polling_interval_sec": 3600,  # nothing is scheduled
            "log_level": "ERROR",
            "enable_otlp": False,
        }
        self._dbos = DBOS(config=config)
        DBOS.listen_queues([settings.queue])
        DBOS.launch()  # not in another thread: DBOS executes workflows in the event loop of the caller

    def stop_listening(self) -> None:
        """Start no more runs in this process. Running executions continue."""
        self._is_stopping = True
        if self._dbos is not None:
            for event in self._dbos.background_thread_stop_events:
                event.set()

    async def aclose(self) -> None:
        """Stop the executions, and return their runs to the queue. Then release the lock of this process."""
        self.stop_listening()
        with anyio.CancelScope(shield=True):
            try:
                if self in _working:
                    await self._stop_working()
                await in_thread(self._disconnect)
            finally:
                await in_thread(self._liveness.close)

    async def _stop_working(self) -> None:
        await self._cancel_all()
        if self._dbos is not None:
            from dbos import DBOS  # noqa: PLC0415 - of an extra

            await in_thread(DBOS.destroy)  # returns when no thread dequeues runs any more
            await self._cancel_all()  # executions that started meanwhile
            # DBOS may have replaced the default executor of the event loop, and `destroy` has shut it down.
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
        _working.remove(self)

    async def _cancel_all(self) -> None:
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _disconnect(self) -> None:
        try:
            if self._client is not None:
                if self._settings.works and self._liveness.is_held:
                    self._requeue(self._orphans(self._settings.executor))
                self._client.destroy()
        finally:
            if self._database is not None:
                close_pool(self._database)

    # --- the queue ---

    def enqueue(self, connection: Any, run_id: str) -> None:
        """Add a run to the queue, in the open transaction of a connection of psycopg or sqlite3. This blocks the thread.

        If the run is already in the queue, nothing changes.
        """
        settings = self._settings
        options = {
            "workflow_name": _WORKFLOW, "queue_name": settings.queue, "workflow_id": run_id, "app_version": settings.version
        }  # fmt: skip
        self._borrower.enqueue(connection, options, run_id)

    async def requeue(self, run_ids: Sequence[str]) -> None:
        """Requeue runs. If a process is executing a run, this execution continues, and the run also starts again."""
        with self._borrower.store_errors():
            await in_thread(self._requeue, run_ids)

    async def delete(self, run_ids: Sequence[str]) -> None:
        """Delete the rows of DBOS for these runs. An unknown id is ignored."""
        if run_ids:
            with self._borrower.store_errors():
                await in_thread(self._client.delete_workflows, list(run_ids))

    async def take_over(self) -> dict[str, list[str]]:
        """Requeue the runs of dead workers. Also requeue the runs that this worker has dequeued, but does not execute.

        Returns the ids of the requeued runs of each executor. Call this method every few seconds in each worker. It first checks
        the lock of this process, and requeues nothing without the lock.
        """
        return await in_thread(self._take_over)

    def _take_over(self) -> dict[str, list[str]]:
        taken: dict[str, list[str]] = {}
        if not self._liveness.check():
            return taken
        for executor, run_ids in self._dequeued().items():
            if executor == self._settings.executor:
                taken[executor] = self._own_strays(set(run_ids))
            elif self._liveness.take(executor):
                try:
                    # List the runs again: the worker may have dequeued more runs before it died.
                    taken[executor] = self._orphans(executor)
                    self._requeue(taken[executor])
                finally:
                    self._liveness.drop(executor)
        return {executor: run_ids for executor, run_ids in taken.items() if run_ids}

    def _own_strays(self, run_ids: set[str]) -> list[str]:
        """Requeue the runs that this process has dequeued, but does not execute.

        A run whose execution has ended without its end is requeued at the second check. A run that has not started may only
        start late, because the process is busy. Then a second execution would ask the model again, so it gets more checks.
        """
        unexecuted = run_ids - self._running.keys()
        self._left &= run_ids
        self._strays = {run_id: self._strays.get(run_id, 0) + 1 for run_id in unexecuted}
        if self._is_stopping:
            return []
        strays = [
            run_id for run_id, checks in self._strays.items() if checks > (1 if run_id in self._left else _CHECKS)
        ]
        self._requeue(strays)
        self._left.difference_update(strays)
        return strays

    def _orphans(self, executor: str) -> list[str]:
        return self._dequeued(executor)[executor]

    def _dequeued(self, executor: str | None = None) -> defaultdict[str, list[str]]:
        """Return the ids of the active dequeued runs of each executor, or only of `executor`."""
        by_executor: defaultdict[str, list[str]] = defaultdict(list)
        for row in self._client.list_workflows(
            status="PENDING", queue_name=self._settings.queue, executor_id=executor, load_input=False, load_output=False
        ):
            by_executor[row.executor_id].append(row.workflow_id)
        return by_executor

    def _requeue(self, run_ids: Sequence[str]) -> None:
        if run_ids:
            self._client.resume_workflows(list(run_ids), queue_name=self._settings.queue)

    def _register(self) -> None:
        """Create the queue or update its limits. All workers apply the new limits at their next poll."""
        from dbos import _error  # noqa: PLC0415 - of an extra

        queue = self._client.retrieve_queue(self._settings.queue)
        was = queue and {name: getattr(queue, name) for name in _LIMITS}
        limits = self._limits(was or dict.fromkeys(_LIMITS))
        on_conflict = "never_update" if limits == was else "always_update"
        try:
            self._client.register_queue(self._settings.queue, **limits, on_conflict=on_conflict)
        except _error.DBOSException as error:
            raise ConfigurationError(f"another program has the queue {self._settings.queue!r}: {error}") from error

    def _limits(self, was: Mapping[str, Any]) -> dict[str, Any]:
        settings, limits = self._settings, dict(was)
        if settings.works:
            limits["worker_concurrency"] = settings.concurrency
        if settings.works or not limits["polling_interval_sec"]:
            limits["polling_interval_sec"] = settings.poll_seconds
        if settings.global_concurrency is not None:
            most = settings.global_concurrency
            limits["global_concurrency"] = None if math.isinf(most) else int(most)
        if settings.limiter is not None:
            number, seconds = settings.limiter
            # In a file, DBOS reads the time in whole seconds before Python 3.12. Without one more second, it would count too little.
            period = seconds + (settings.url.startswith("sqlite") and sys.version_info < (3, 12))
            limits["limiter"] = None if math.isinf(number) else {"limit": int(number), "period": period}
        if limits["worker_concurrency"] and limits["global_concurrency"]:  # DBOS refuses a higher worker limit
            limits["worker_concurrency"] = min(limits["worker_concurrency"], limits["global_concurrency"])
        return limits

    # --- executions ---

    async def run(self, run_id: str) -> None:
        """Execute a run for DBOS. Raises CancelledError if the run has not ended. DBOS then records no outcome."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - DBOS makes a task for each workflow
        self._tasks.add(task)  # until the task ends: after this method, it may wait in DBOS for another process
        task.add_done_callback(self._tasks.discard)
        self._running[run_id] = self._running.get(run_id, 0) + 1
        has_ended = False
        try:
            await self._until_alive(run_id)
            await self._execute(run_id)
            has_ended = True
        except Exception as error:
            fields = {"run_id": run_id, "agent": None}
            logger.exception("the execution of the run %s failed; another attempt follows", run_id, extra=fields)
            raise asyncio.CancelledError from error
        finally:
            if not has_ended:
                self._left.add(run_id)
            self._running[run_id] -= 1
            if not self._running[run_id]:
                del self._running[run_id]

    async def _until_alive(self, run_id: str) -> None:
        """Wait until this process holds its lock. Raises CancelledError if another process took over the run meanwhile."""
        if self._is_stopping:
            raise asyncio.CancelledError
        if self._liveness.is_held:
            return
        while not self._liveness.is_held:  # noqa: ASYNC110 - a thread changes it
            await anyio.sleep(self._settings.poll_seconds)
        if run_id not in await in_thread(self._orphans, self._settings.executor):
            raise asyncio.CancelledError


# --- DBOS ---


@functools.cache
def _workflow() -> Any:
    from dbos import DBOS  # noqa: PLC0415 - of an extra

    async def run(run_id: str) -> None:
        if not _working:
            raise asyncio.CancelledError
        await _working[0].run(run_id)

    # DBOS must not limit the recoveries, because the record of the run counts the deaths of its processes.
    return DBOS.workflow(name=_WORKFLOW, max_recovery_attempts=None)(run)


def executor_of_host() -> str | None:
    """Return the id of this process in the DBOS that the program (the host) has launched. Returns None without such a DBOS."""
    if _working or _dbos_of_host() is None:
        return None
    from dbos import DBOS  # noqa: PLC0415 - of an extra

    return str(DBOS.executor_id)


def _dbos_of_host() -> Any:
    from dbos import _dbos  # noqa: PLC0415 - DBOS has no public way to get the instance

    return _dbos._dbos_global_instance  # noqa: SLF001 - DBOS has no public name for it


def _application(database: Any, queue: str) -> str:
    """Return the application name of the queue: the name of the host, if a worker uses the DBOS of its host."""
    from dbos import DBOSClient  # noqa: PLC0415 - of an extra

    client: Any = DBOSClient(system_database_engine=database)
    registered = client.retrieve_queue(queue)
    client.destroy()
    return (registered and registered.application_name) or _APP


def _fitting(host: Any, settings: EngineSettings) -> str:
    """Return the application name of the host's DBOS. Raises ConfigurationError if this DBOS would not execute the runs."""
    from dbos import DBOS  # noqa: PLC0415 - of an extra

    mine, its = (settings.version, settings.executor), (DBOS.application_version, DBOS.executor_id)
    if mine != its:
        raise ConfigurationError(
            f"the DBOS of this process has the version and executor {its}, but the runs have {mine}; use the same values"
        )
    if (queues := host._listening_queues) is not None and settings.queue not in queues:  # noqa: SLF001 - DBOS has no public name for it
        raise ConfigurationError(
            f"the DBOS of this process listens only to {queues}; add {settings.queue!r} to listen_queues"
        )
    return str(host._config["name"])  # DBOS executes only workflows of its own application  # noqa: SLF001 - DBOS has no public name for it


def _sees(host: Any, client: Any, executor: str) -> bool:
    """Return whether the host's DBOS and the client use one database: whether the host finds a new queue of the client.

    A comparison of their URLs is not enough, because two URLs may name one database.
    """
    probe = f"aswarm-probe-{executor}"
    client.register_queue(probe)
    try:
        return host.retrieve_queue(probe) is not None
    finally:
        client.delete_queue(probe)

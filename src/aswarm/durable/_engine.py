"""The engine: DBOS, embedded in this process. Only this module and `_steps` import dbos.

Decides how DBOS is set up. Every call of it runs in a context of its own: inside a workflow, DBOS would record the call as a step
of that run. No value is pickled.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import importlib.util
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio
import anyio.to_thread

from aswarm._errors import ConfigurationError
from aswarm._json import is_object
from aswarm._text import how_to_install

if TYPE_CHECKING:
    pass

logger = logging.getLogger("aswarm")
T = TypeVar("T")
Execute = Callable[[str], Awaitable[None]]

_APP = "aswarm"
_WORKFLOW = "aswarm.run"
_current: list[Engine] = []  # one at most: DBOS is one object for the whole process


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine works. `url`: of the database, as SQLAlchemy takes it. `executor`: the id of this process.

    `poll_seconds`: how often it looks for runs that were begun before. `threads`: how many DBOS may use. `synchronous`: of SQLite.
    """

    url: str
    version: str
    executor: str
    poll_seconds: float
    threads: int
    synchronous: Literal["normal", "full"]
    works: bool


class Engine:
    """DBOS with the workflow of this package. `execute` runs one run, with the id that it gets.

    A workflow that was begun before can be executed again only out of a queue of DBOS. So each process has one for itself.

    With `works=False` it is a client of the database only, and starts no thread.
    """

    def __init__(self, settings: EngineSettings, execute: Execute) -> None:
        if importlib.util.find_spec("dbos") is None:
            raise ConfigurationError(f"durable runs need dbos: {how_to_install('durable')}")
        self._settings = settings
        self.execute = execute
        self._is_own = True
        self._database: Any = None
        self._api: Any = None  # DBOS, or a client of it: both have the same methods

    # --- the life of the engine ---

    async def open(self) -> None:
        """Start DBOS in this event loop; or use the one that the host has started; or connect a client. `aclose` follows."""
        if not self._settings.works:
            self._api = await anyio.to_thread.run_sync(self._client)
            return
        _current.append(self)
        await self._start()

    def _client(self) -> Any:
        from dbos import DBOS, DBOSClient  # noqa: PLC0415 - of an extra

        given = self._settings
        self._database = _sqlite_engine(given) if given.url.startswith("sqlite") else None
        DBOS.migrate(given.url)
        where: Any = {"system_database_url": given.url, "system_database_engine": self._database}
        return DBOSClient(**where, serializer=_json_serializer(), application_name=_APP)

    async def _start(self) -> None:
        from dbos import DBOS  # noqa: PLC0415 - as above

        _register()
        host = _dbos_of_host()
        self._is_own = host is None
        if host is not None and DBOS.application_version != self._settings.version:
            raise ConfigurationError(
                f"the DBOS of this process has the application version {DBOS.application_version!r}, and the durable runs "
                f"{self._settings.version!r}; give both the same"
            )
        if host is None:
            await self._launch()
        else:
            await self._register_queue(DBOS)
        self._api = DBOS

    @property
    def _queue(self) -> str:
        return _queue_of(self._settings.executor)

    async def _register_queue(self, api: Any) -> None:
        seconds = (
            10 * self._settings.poll_seconds
        )  # it is used for runs that were begun before, and each look costs six statements
        await _outside(
            lambda: api.register_queue_async(self._queue, polling_interval_sec=seconds, on_conflict="always_update")
        )

    async def _launch(self) -> None:
        from dbos import DBOS  # noqa: PLC0415 - as above

        client = await anyio.to_thread.run_sync(self._client)
        try:
            await self._register_queue(client)  # DBOS looks for new queues only once a second
        finally:
            client.destroy()
        given = self._settings
        config: Any = {
            "name": _APP,
            "system_database_url": given.url,
            "system_database_engine": self._database,
            "application_version": given.version,
            "executor_id": given.executor,
            "serializer": _json_serializer(),
            "max_executor_threads": given.threads,
            "sys_db_pool_size": max(4, min(given.threads, 20)),
            "notification_listener_polling_interval_sec": 0.2,  # nothing waits for notifications, and closing waits for this
            "log_level": "ERROR",
            "enable_otlp": False,
        }
        DBOS(config=config)
        DBOS.listen_queues([self._queue])
        DBOS.launch()
        _wait_for_lost_servers()

    async def aclose(self) -> None:
        """Stop. Workflows that have not ended stay as they are in the database."""
        if not self._settings.works:
            if self._api is not None:
                await anyio.to_thread.run_sync(self._api.destroy)
        elif self in _current:
            await self._stop()
        if self._database is not None:
            self._database.dispose()

    async def _stop(self) -> None:
        _current.remove(self)
        await self.forget(self._settings.executor)
        host = _dbos_of_host()
        if host is None or not self._is_own:
            return
        # A workflow that has lost its run waits in DBOS for the outcome that another process will write.
        parked = [task for task in host._workflow_tasks if not task.done()]  # noqa: SLF001
        for task in parked:
            task.cancel()
        await asyncio.gather(*parked, return_exceptions=True)
        await anyio.to_thread.run_sync(_destroy)
        # DBOS has replaced the default executor of the loop by its own, which has ended.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())

    # --- runs ---

    @staticmethod
    def executor_of_host() -> str | None:
        """The id of this process in the DBOS that the host has started, if it has. Raises ConfigurationError if it is ours."""
        if _current:
            raise ConfigurationError(
                "this process has durable runs that are open; DBOS is one for the whole process, so share the DurableRuns"
            )
        return None if importlib.util.find_spec("dbos") is None or _dbos_of_host() is None else _id_in_dbos()

    async def start(self, run_id: str) -> None:
        """Begin a run here, now. It must not have begun before."""
        from dbos import SetWorkflowID  # noqa: PLC0415 - as above

        async def start() -> None:
            with SetWorkflowID(run_id):
                await self._api.start_workflow_async(_register(), run_id)

        await _outside(start)

    async def begin_again(self, run_id: str) -> str | None:
        """Execute a run here that may have begun before. Its process must be dead, or have left it.

        Returns the status that DBOS has if that says that the run has ended, otherwise None.
        """
        found = await _outside(
            lambda: self._api.list_workflows_async(workflow_ids=[run_id], load_input=False, load_output=False)
        )
        if not found:
            await self.start(run_id)
        elif found[0].status not in ("ENQUEUED", "PENDING"):
            return str(found[0].status)
        else:
            # Another process has deleted the queue if this one had lost its lock: it took this one for dead.
            await self._register_queue(self._api)
            await _outside(lambda: self._api.resume_workflows_async([run_id], queue_name=self._queue))
        return None

    async def forget(self, executor: str) -> None:
        """Delete what DBOS keeps of a process that has ended."""
        with suppress(Exception):  # it is of no harm
            await _outside(lambda: self._api.delete_queue_async(_queue_of(executor)))

    async def recorded(self, run_id: str) -> dict[int, Any]:
        """The outputs of the recorded steps of a run, by number."""
        found = await _outside(lambda: self._api.list_workflow_steps_async(run_id))
        return {step["function_id"]: step["output"] for step in found}

    async def delete(self, run_ids: Sequence[str]) -> None:
        """Delete runs that have ended, with their steps."""
        await _outside(lambda: self._api.delete_workflows_async(list(run_ids)))

    async def cancel(self, run_id: str) -> None:
        """Let a run that no process executes never begin again."""
        await _outside(lambda: self._api.cancel_workflow_async(run_id))


# --- DBOS ---


def _queue_of(executor: str) -> str:
    return f"aswarm-{executor}"


def _dbos_of_host() -> Any:
    from dbos import _dbos  # noqa: PLC0415 - DBOS does not tell otherwise whether there is one

    return _dbos._dbos_global_instance  # noqa: SLF001


def _id_in_dbos() -> str:
    from dbos import DBOS  # noqa: PLC0415 - of an extra

    return str(DBOS.executor_id)


def _wait_for_lost_servers() -> None:
    """Let DBOS wait until it has a connection again, in every case: it does not know all texts of a server that is not there."""
    import sqlalchemy  # noqa: PLC0415 - DBOS brings it

    def note(context: Any) -> None:
        error = context.original_exception
        if type(error).__name__ == "OperationalError" and not getattr(error, "sqlstate", "SQLite has none"):
            context.is_disconnect = True

    alchemy: Any = sqlalchemy
    alchemy.event.listen(_dbos_of_host()._sys_db.engine, "handle_error", note)  # noqa: SLF001


def _destroy() -> None:
    from dbos import DBOS  # noqa: PLC0415 - of an extra

    DBOS.destroy()


@functools.cache
def _register() -> Any:
    """The workflow: one run. It is registered once, before DBOS is launched."""
    from dbos import DBOS  # noqa: PLC0415 - of an extra

    async def run(run_id: str) -> str:
        if not _current:  # the process is about to end
            raise asyncio.CancelledError
        await _current[0].execute(run_id)
        return ""

    # How often a run may be taken over is counted by this package.
    return DBOS.workflow(name=_WORKFLOW, max_recovery_attempts=None)(run)


async def _outside(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await the call in a context without a workflow. If the caller is cancelled, the call still runs to its end."""
    task = asyncio.get_running_loop().create_task(call(), context=contextvars.Context())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        with anyio.CancelScope(shield=True), suppress(Exception):
            await asyncio.shield(task)
        raise


def _sqlite_engine(given: EngineSettings) -> Any:
    import sqlalchemy  # noqa: PLC0415 - DBOS brings it

    alchemy: Any = sqlalchemy
    engine = alchemy.create_engine(given.url, pool_size=given.threads, max_overflow=4)

    def prepare(connection: Any, _: Any) -> None:
        connection.isolation_level = "IMMEDIATE"
        for pragma in ("busy_timeout=30000", "journal_mode=WAL", f"synchronous={given.synchronous}", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    alchemy.event.listen(engine, "connect", prepare)
    return engine


def _json_serializer() -> Any:
    from dbos import Serializer  # noqa: PLC0415 - of an extra

    class JsonSerializer(Serializer):
        """JSON in place of pickle: reading a database must not run code."""

        def name(self) -> str:
            return "aswarm_json"

        def serialize(self, data: Any) -> str:
            return json.dumps(data, default=_described)

        def deserialize(self, serialized_data: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            data: Any = json.loads(serialized_data)
            return RuntimeError(data["error"]) if is_object(data) and "error" in data else data

    return JsonSerializer()


def _described(value: object) -> Any:
    if isinstance(value, BaseException):
        return {"error": f"{type(value).__name__}: {value}"}
    return str(value)

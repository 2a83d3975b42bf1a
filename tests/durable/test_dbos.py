"""DBOS as the executor: the queue, takeovers, and how a worker stops."""

from __future__ import annotations

import asyncio
import math
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from dbos import DBOS

from aswarm import ConfigurationError
from aswarm._sql.liveness import FileLocks, Liveness, PostgresLocks
from aswarm.durable._dbos import Engine, EngineSettings
from tests.support.conversations.stores import emptied_database

pytestmark = pytest.mark.asyncio


also_postgres = pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.heavy)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    url = emptied_database(request.getfixturevalue("postgres"))
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass('dbos.queues')").fetchone() != (None,):
            connection.execute("DELETE FROM dbos.queues")
    return url


def locks_of(url: str) -> Liveness:
    return FileLocks(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else PostgresLocks(url)


@contextmanager
def transaction(url: str, last: str = "COMMIT") -> Iterator[Any]:
    """A transaction of a connection that is not SQLAlchemy's."""
    connection: Any
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
    else:
        connection = psycopg.connect(url, autocommit=True)
    connection.execute("BEGIN")
    yield connection
    connection.execute(last)
    connection.close()


class Executions:
    """Executes runs: notes the attempts, and waits for `go` with the ids that start with "slow"."""

    def __init__(self) -> None:
        self.attempts: list[str] = []
        self.finished: list[str] = []
        self.go = anyio.Event()
        self.fenced: set[str] = set()

    async def __call__(self, run_id: str) -> None:
        self.attempts.append(run_id)
        if run_id in self.fenced:
            self.fenced.remove(run_id)
            raise asyncio.CancelledError
        if run_id.startswith("slow"):
            await self.go.wait()
        self.finished.append(run_id)


@pytest.fixture
def runs() -> Executions:
    return Executions()


@asynccontextmanager
async def opened(url: str, execute: Callable[[str], Awaitable[None]], **given: Any) -> AsyncIterator[Engine]:
    settings: dict[str, Any] = {"queue": "runs", "version": "1", "executor": "here", "poll_seconds": 0.02}
    engine = Engine(EngineSettings(**{"url": url, **settings, **given}), execute, locks_of(url))
    await engine.open()
    try:
        yield engine
    finally:
        await engine.aclose()


def enqueue(engine: Engine, url: str, run_id: str, last: str = "COMMIT") -> None:
    with transaction(url, last) as connection:
        engine.enqueue(connection, run_id)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(120):
        while not condition():
            await anyio.sleep(0.01)


def statuses(engine: Engine) -> dict[str, str]:
    return {row.workflow_id: row.status for row in engine._client._sys_db.list_workflows()}


async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(call, *arguments)


@also_postgres
async def test_a_run_is_in_the_queue_once_its_transaction_commits(url: str, runs: Executions) -> None:
    """A transaction that is rolled back leaves nothing, and a second enqueue changes nothing."""
    async with opened(url, runs) as engine:
        await in_thread(enqueue, engine, url, "never", "ROLLBACK")
        await in_thread(enqueue, engine, url, "r")
        await until(lambda: runs.finished == ["r"])
        await in_thread(enqueue, engine, url, "r")
        await until(lambda: statuses(engine) == {"r": "SUCCESS"})
    assert runs.attempts == ["r"]


async def test_an_error_of_the_driver(url: str, runs: Executions) -> None:
    """`enqueue` raises the error of the connection's own driver."""
    async with opened(url, runs, works=False) as engine:
        with transaction(url) as connection:
            pass
        with pytest.raises((sqlite3.Error, psycopg.Error)):
            engine.enqueue(connection, "r")


async def test_a_worker_that_stops_returns_its_runs(url: str, runs: Executions) -> None:
    """Their tasks stop without an outcome, the runs are in the queue, the lock is free, and threads work."""
    async with opened(url, runs) as engine:
        await in_thread(enqueue, engine, url, "slow")
        await until(lambda: runs.attempts == ["slow"])
    assert runs.finished == []
    assert await asyncio.to_thread(lambda: "works") == "works"
    locks = locks_of(url)
    locks.hold("here")
    locks.close()
    async with opened(url, runs, works=False) as engine:
        assert statuses(engine) == {"slow": "ENQUEUED"}
    runs.go.set()
    async with opened(url, runs, executor="next"):
        await until(lambda: runs.finished == ["slow"])


@also_postgres
async def test_a_run_that_was_enqueued_by_a_client(url: str, runs: Executions) -> None:
    """A process that executes nothing starts runs for the workers, and needs no lock."""
    async with opened(url, runs, works=False) as client, opened(url, runs) as engine:
        await in_thread(enqueue, client, url, "r")
        await until(lambda: statuses(engine) == {"r": "SUCCESS"})
        await client.delete(["r", "unknown"])
        assert statuses(engine) == {}


async def test_other_versions_and_queues(url: str, runs: Executions) -> None:
    """A worker takes runs of its own version out of its own queue."""
    async with opened(url, runs, works=False, version="2") as newer, opened(url, runs, works=False, queue="x") as other:
        await in_thread(enqueue, newer, url, "newer")
        await in_thread(enqueue, other, url, "other")
        async with opened(url, runs) as engine:
            await in_thread(enqueue, engine, url, "r")
            await until(lambda: statuses(engine)["r"] == "SUCCESS")
    assert runs.attempts == ["r"]


async def test_a_fenced_execution(url: str, runs: Executions) -> None:
    """A run whose execution raised CancelledError has no outcome, and `take_over` starts it again."""
    runs.fenced.add("r")
    async with opened(url, runs) as engine:
        await in_thread(enqueue, engine, url, "r")
        await until(lambda: runs.attempts == ["r"] and not engine._running)
        assert statuses(engine) == {"r": "PENDING"}
        assert await engine.take_over() == {}  # it may have been taken out of the queue just now
        assert await engine.take_over() == {"here": ["r"]}
        await until(lambda: statuses(engine) == {"r": "SUCCESS"})


async def test_an_execution_with_an_error(url: str, runs: Executions, caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged, and is no outcome: the record decides how a run ends."""

    async def fail(run_id: str) -> None:
        raise ValueError(run_id)

    async with opened(url, fail) as engine:
        await in_thread(enqueue, engine, url, "r")
        await until(lambda: "execution of the run r failed" in caplog.text)
        assert statuses(engine) == {"r": "PENDING"}


async def test_a_requeued_run_starts_beside_its_first_execution(url: str, runs: Executions) -> None:
    """DBOS checks neither status nor process, so the record must refuse the first execution."""
    async with opened(url, runs) as engine:
        await in_thread(enqueue, engine, url, "slow")
        await until(lambda: runs.attempts == ["slow"])
        await engine.requeue(["slow"])
        await until(lambda: runs.attempts == ["slow"] * 2)
        runs.go.set()
        await until(lambda: statuses(engine) == {"slow": "SUCCESS"})


_WORKER = """
    import asyncio, sys
    from aswarm._sql.liveness import FileLocks, PostgresLocks
    from aswarm.durable._dbos import Engine, EngineSettings

    async def execute(run_id):
        print(run_id, flush=True)
        await asyncio.sleep(1000)

    async def main(url):
        locks = FileLocks(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else PostgresLocks(url)
        settings = EngineSettings(url=url, queue="runs", version="1", executor="there", poll_seconds=0.02)
        engine = Engine(settings, execute, locks)
        await engine.open()
        print("open", flush=True)
        await asyncio.sleep(1000)

    asyncio.run(main(sys.argv[1]))
"""


@contextmanager
def killed_worker(url: str) -> Iterator[Any]:
    """A worker of another process, which is killed after the block. Yields its output."""
    worker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(_WORKER), url], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    try:
        assert worker.stdout.readline() == "open\n"
        yield worker.stdout
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdout.close()


@pytest.mark.processes
@also_postgres
async def test_the_runs_of_a_killed_worker(url: str, runs: Executions, tmp_path: Path) -> None:
    """A live worker takes them over; a killed worker leaves neither a row of a queue nor, after the next opening, a file."""
    runs.go.set()
    async with opened(url, runs, works=False) as client:
        with killed_worker(url) as output:
            await in_thread(enqueue, client, url, "slow")
            assert await in_thread(output.readline) == "slow\n"
            async with opened(url, runs) as engine:
                assert await engine.take_over() == {}
                assert await engine.orphans("there") == ["slow"]
        async with opened(url, runs, executor="next") as engine:
            assert await engine.take_over() == {"there": ["slow"]}
            await until(lambda: statuses(engine) == {"slow": "SUCCESS"})
            assert [queue.name for queue in await DBOS.list_queues_async()] == ["runs"]
    assert runs.finished == ["slow"]
    assert list(tmp_path.glob("*.lock")) == []


async def test_a_worker_without_its_lock(postgres: str, runs: Executions) -> None:
    """It executes nothing until it has its lock again."""
    url = emptied_database(postgres)
    async with opened(url, runs) as engine:
        locks: Any = engine._liveness
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", (locks._backend,))
        assert await engine.take_over() == {}
        assert not locks.is_held
        await in_thread(enqueue, engine, url, "r")
        await until(lambda: statuses(engine) == {"r": "PENDING"} and bool(engine._running))
        assert runs.attempts == []
        await engine.take_over()
        await until(lambda: runs.finished == ["r"])


async def test_the_limits_of_the_last_worker_hold(url: str, runs: Executions) -> None:
    """For all workers, at their next poll. A client and a worker that give no limit of all workers keep it."""
    async with opened(url, runs, concurrency=1) as engine:
        for run_id in ("slow 1", "slow 2", "slow 3"):
            await in_thread(enqueue, engine, url, run_id)
        await until(lambda: len(runs.attempts) == 1)
        async with opened(url, runs, works=False, global_concurrency=2):
            await anyio.sleep(0.2)
            assert len(runs.attempts) == 1
    runs.attempts.clear()
    async with opened(url, runs, concurrency=5), opened(url, runs, works=False):
        await until(lambda: len(runs.attempts) == 2)
        await anyio.sleep(0.2)
        assert len(runs.attempts) == 2
    runs.attempts.clear()
    async with opened(url, runs, concurrency=5, global_concurrency=math.inf):
        await until(lambda: len(runs.attempts) == 3)


@also_postgres
async def test_limits_of_all_workers(url: str, runs: Executions) -> None:
    """`global_concurrency` and `limiter` hold for the queue."""
    async with opened(url, runs, concurrency=5, global_concurrency=2, limiter=(3, 60.0)) as engine:
        for number in range(5):
            await in_thread(enqueue, engine, url, f"slow {number}")
        await until(lambda: len(runs.attempts) == 2)
        await anyio.sleep(0.2)
        assert len(runs.attempts) == 2
        runs.go.set()
        await until(lambda: len(runs.finished) == 3)
        await anyio.sleep(0.2)
        assert len(runs.attempts) == 3


async def test_a_second_worker_in_one_process(url: str, runs: Executions) -> None:
    """It is refused, because DBOS is one object; the first worker goes on."""
    async with opened(url, runs) as engine:
        with pytest.raises(ConfigurationError, match="already has a durable worker"):
            async with opened(url, runs, executor="second"):
                pass
        await in_thread(enqueue, engine, url, "r")
        await until(lambda: runs.finished == ["r"])


@asynccontextmanager
async def host(url: str) -> AsyncIterator[None]:
    """A DBOS that the host has launched."""
    DBOS(config={
        "name": "host", "system_database_url": url, "application_version": "1", "executor_id": "here",
        "log_level": "ERROR", "notification_listener_polling_interval_sec": 0.05,
    })  # fmt: skip
    DBOS.launch()
    try:
        yield
    finally:
        await in_thread(DBOS.destroy)


async def test_the_dbos_of_the_host(url: str, runs: Executions) -> None:
    """It executes the runs, and is not destroyed with the engine."""
    async with host(url):
        async with opened(url, runs) as engine:
            await in_thread(enqueue, engine, url, "r")
            await until(lambda: statuses(engine) == {"r": "SUCCESS"})
        assert [queue.name for queue in await DBOS.list_queues_async()] == ["runs"]


async def test_a_client_of_a_worker_in_the_dbos_of_the_host(url: str, runs: Executions) -> None:
    """Its runs belong to the application of the queue; otherwise the DBOS of the host would not execute them."""
    async with host(url), opened(url, runs) as engine, opened(url, runs, works=False) as client:
        await in_thread(enqueue, client, url, "r")
        await until(lambda: statuses(engine) == {"r": "SUCCESS"})


async def test_the_queue_of_another_application(url: str, runs: Executions) -> None:
    """Two programs use two queue names."""
    async with opened(url, runs, works=False), host(url):
        with pytest.raises(ConfigurationError, match="another program has the queue 'runs'"):
            async with opened(url, runs):
                pass


async def test_the_dbos_of_the_host_on_another_database(tmp_path: Path, runs: Executions) -> None:
    """It is refused."""
    async with host(f"sqlite:///{tmp_path}/host.db"):
        with pytest.raises(ConfigurationError, match="another database"):
            async with opened(f"sqlite:///{tmp_path}/runs.db", runs):
                pass
        with pytest.raises(ConfigurationError, match="version and executor"):
            async with opened(f"sqlite:///{tmp_path}/host.db", runs, version="2"):
                pass


async def test_values_are_json(url: str, runs: Executions) -> None:
    """The only argument of a workflow is the id; nothing in the database is pickled."""
    async with opened(url, runs, works=False) as engine:
        await in_thread(enqueue, engine, url, "r")
        table = "workflow_input" if url.startswith("sqlite") else "dbos.workflow_input"
        with transaction(url) as connection:
            inputs = [row[0] for row in connection.execute(f"SELECT inputs FROM {table}").fetchall()]
    assert inputs == ['{"namedArgs":{},"positionalArgs":["r"]}']

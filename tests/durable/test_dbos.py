"""DBOS as the executor: the queue, workers that stop, and a DBOS that the program has launched."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest
from dbos import DBOS

from aswarm import ConfigurationError
from aswarm._sql.processes import FileLocks
from aswarm.runs import RunNotFound
from aswarm.testing import call
from tests.support.conversations.stores import emptied_database
from tests.support.durable.durables import Shop, durable
from tests.support.runtime.virtual_time import jump

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


def rows_of(url: str, columns: str, table: str) -> list[Any]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
            return file.execute(f"SELECT {columns} FROM {table}").fetchall()
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT {columns} FROM dbos.{table}".encode()).fetchall()


async def test_a_worker_that_stops_returns_its_runs(url: str, tmp_path: Path) -> None:
    """Its functions stop, the runs are in the queue, and threads of the event loop work. The next worker continues them."""
    shop = Shop()
    async with durable(tmp_path, [call("look")], shop, url=url) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        await shop.began.wait()
    assert await asyncio.to_thread(lambda: "works") == "works"
    assert rows_of(url, "workflow_uuid, status", "workflow_status") == [("r", "ENQUEUED")]
    async with durable(tmp_path, [], shop, url=url, concurrency=0) as client:
        assert (await client.get_run("r")).record.is_queued
    shop.go.set()
    async with durable(tmp_path, ["Seen."], shop, url=url) as runs:
        assert (await (await runs.get_run("r")).result()).text == "Seen."


@also_postgres
async def test_a_client_starts_and_deletes_runs_of_workers(url: str, tmp_path: Path) -> None:
    """A process that executes nothing needs no lock. DBOS stores the id of a run as JSON, and nothing is pickled."""
    shop = Shop()
    async with durable(tmp_path, [], shop, url=url, concurrency=0) as client:
        run = await client.start("Boss", "Hi!", run_id="r")
        assert rows_of(url, "inputs", "workflow_input") == [('{"namedArgs":{},"positionalArgs":["r"]}',)]
        async with durable(tmp_path, ["Hello."], shop, url=url):
            assert (await run.result()).text == "Hello."
            while rows_of(url, "workflow_uuid, status", "workflow_status") != [("r", "SUCCESS")]:
                await anyio.sleep(0.01)
        assert await client.purge(older_than_seconds=0) == 1
        assert rows_of(url, "workflow_uuid", "workflow_status") == []


@also_postgres
async def test_a_worker_executes_the_runs_of_its_own_queue(url: str, tmp_path: Path) -> None:
    """Two programs may share a database."""
    shop = Shop()
    async with durable(tmp_path, [], shop, url=url, concurrency=0, queue="x") as other:
        left = await other.start("Boss", "Hi!", run_id="left")
        async with durable(tmp_path, ["Hello."], shop, url=url) as runs:
            assert (await (await runs.start("Boss", "Hi!", run_id="r")).result()).text == "Hello."
            assert (await runs.get_run(left.id)).record.is_queued


async def test_a_worker_executes_nothing_without_its_lock(postgres: str, tmp_path: Path) -> None:
    """After the loss of its session, a new run waits until the worker has its lock again."""
    url, shop = emptied_database(postgres), Shop()
    locks = "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = 'durable')"
    async with durable(tmp_path, [call("look"), "Seen."], shop, url=url, failover_seconds=60) as runs:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM ({locks}) held".encode())
        jump(60)
        while runs._engine._liveness.is_held:
            await anyio.sleep(0.01)
        run = await runs.start("Boss", "Hi!", run_id="r")
        while rows_of(url, "status", "workflow_status") != [("PENDING",)]:
            await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        assert not shop.keys
        shop.go.set()
        jump(60)
        assert (await run.result()).text == "Seen."
        assert runs._engine._liveness.is_held


async def test_a_run_that_starts_late_is_executed_once(tmp_path: Path) -> None:
    """On a busy machine, a run starts seconds after its worker has dequeued it. It must not be taken for lost."""
    shop = Shop()
    async with durable(tmp_path, [call("look"), "Seen."], shop) as runs:
        execute = runs._engine.run

        async def late(run_id: str) -> None:
            await anyio.sleep(1)  # three checks
            await execute(run_id)

        runs._engine.run = late  # type: ignore[method-assign]
        run = await runs.start("Boss", "Hi!")
        await shop.began.wait()
        await anyio.sleep(1.5)  # meanwhile, a second execution would start
        shop.go.set()
        assert (await run.result()).text == "Seen."
    assert len(shop.keys["look"]) == 1


async def test_the_runs_of_a_living_worker_are_left_to_it(tmp_path: Path) -> None:
    """Also if it seems to do nothing. When it dies, another worker executes them."""
    url, other = f"sqlite:///{tmp_path}/runs.db", FileLocks(f"{tmp_path}/runs.db")
    async with durable(tmp_path, [], Shop(), url=url, concurrency=0) as client:
        await client.start("Boss", "Hi!", run_id="r")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
        file.execute("UPDATE workflow_status SET status = 'PENDING', executor_id = 'other'")
    other.hold("other")
    async with durable(tmp_path, ["Hello."], Shop(), url=url, failover_seconds=60) as runs:
        await runs.take_over()
        assert rows_of(url, "status, executor_id", "workflow_status") == [("PENDING", "other")]
        other.close()
        await runs.take_over()
        assert (await (await runs.get_run("r")).result()).text == "Hello."


# --- the DBOS of the program ------------------------------------------------------------------------------------------


@asynccontextmanager
async def host(url: str, *queues: str) -> AsyncIterator[None]:
    DBOS(config={
        "name": "host", "system_database_url": url, "application_version": "1", "executor_id": "host-1",
        "log_level": "ERROR", "notification_listener_polling_interval_sec": 0.05,
    })  # fmt: skip
    if queues:
        DBOS.listen_queues(list(queues))
    DBOS.launch()
    try:
        yield
    finally:
        await anyio.to_thread.run_sync(DBOS.destroy)


async def test_the_dbos_of_the_host_executes_the_runs(url: str, tmp_path: Path) -> None:
    """It goes on afterwards, and executes the runs of clients too. Another version is refused."""
    shop = Shop()
    async with host(url):
        async with (
            durable(tmp_path, ["Hello.", "Hello again."], shop, url=url) as runs,
            durable(tmp_path, [], shop, url=url, concurrency=0) as client,
        ):
            assert (await (await runs.start("Boss", "Hi!", run_id="r")).result()).text == "Hello."
            assert (await (await client.start("Boss", "Hi!")).result()).text == "Hello again."
        with pytest.raises(ConfigurationError, match="version and executor"):
            async with durable(tmp_path, [], shop, url=url, version="2"):
                pass
        (row,) = await DBOS.list_workflows_async(workflow_ids=["r"])
        assert row.executor_id == "host-1"
        assert [queue.name for queue in await DBOS.list_queues_async()] == ["aswarm"]


async def test_the_dbos_of_the_host_executes_no_run_while_the_process_stops(url: str, tmp_path: Path) -> None:
    """It takes the run out of the queue, and the process that stops returns it."""
    shop = Shop()
    # The DBOS of the host ends before `runs`, because it could take the run out of the queue again.
    async with AsyncExitStack() as stack, host(url):
        runs = await stack.enter_async_context(durable(tmp_path, ["Never."], shop, url=url))
        client = await stack.enter_async_context(durable(tmp_path, [], shop, url=url, concurrency=0))
        await runs.drain(0)
        await client.start("Boss", "Hi!", run_id="r")
        while rows_of(url, "status", "workflow_status") != [("PENDING",)]:
            await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        assert (await client.get_run("r")).record.is_queued
    assert rows_of(url, "status", "workflow_status") == [("ENQUEUED",)]


async def test_the_queue_of_another_application_is_refused(url: str, tmp_path: Path) -> None:
    """Two programs use two queue names."""
    async with durable(tmp_path, [], Shop(), url=url, concurrency=0), host(url):
        with pytest.raises(ConfigurationError, match="another program has the queue 'aswarm'"):
            async with durable(tmp_path, [], Shop(), url=url):
                pass


async def test_the_dbos_of_the_host_must_listen_to_the_queue(url: str, tmp_path: Path) -> None:
    """Otherwise, it would execute no run."""
    async with host(url, "mail"):
        with pytest.raises(ConfigurationError, match=r"listens only to .*; add 'aswarm' to listen_queues"):
            async with durable(tmp_path, [], Shop(), url=url):
                pass


async def test_the_dbos_of_the_host_on_another_database_is_refused(tmp_path: Path) -> None:
    """It would not find the runs."""
    async with host(f"sqlite:///{tmp_path}/host.db"):
        with pytest.raises(ConfigurationError, match="another database"):
            async with durable(tmp_path, [], Shop(), url=f"sqlite:///{tmp_path}/runs.db"):
                pass


async def test_a_deleted_run_is_unknown(url: str, tmp_path: Path) -> None:
    """`purge` and `forget` delete the logs of ended runs and the rows of DBOS, and leave the others."""
    shop = Shop()
    async with durable(tmp_path, ["Hello.", call("slow"), "Done."], shop, url=url) as runs:
        await (await runs.start("Boss", "Hi!", run_id="old")).result()
        await runs.start("Boss", "Hi!", run_id="now")
        await shop.began.wait()
        assert await runs.purge(older_than_seconds=3600) == 0
        assert await runs.purge(older_than_seconds=0) == 1
        assert [each.workflow_id for each in await DBOS.list_workflows_async()] == ["now"]
        with pytest.raises(RunNotFound):
            await runs.get_run("old")
        shop.go.set()
        assert (await (await runs.get_run("now")).result()).text == "Done."
        await runs.forget("now", user="-")
        assert await runs.records() == []
        assert await DBOS.list_workflows_async() == []

"""PostgreSQL: connecting, and what happens when the server or a connection goes away."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import psycopg
import pytest

from aswarm import ConfigurationError, StoreError
from aswarm._sql.transactions import single
from aswarm.conversations import PostgresStore
from aswarm.conversations._statements import SCHEMA
from tests.support.conversations.stores import change, user

pytestmark = pytest.mark.asyncio


@pytest.fixture
def admin(conninfo: str) -> Iterator[psycopg.Connection]:
    """Another connection to the same schema."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        yield connection


_OTHERS = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"


def end_others(admin: psycopg.Connection) -> int:
    """End the connections of the store, as a restart of the server does; how many there were."""
    return len(admin.execute(f"SELECT pg_terminate_backend(pid, 5000) {_OTHERS}".encode()).fetchall())


async def until_alone(admin: psycopg.Connection) -> None:
    """Wait until the store has no connection: the server notices a closed one a moment later."""
    with anyio.fail_after(60):
        while admin.execute(f"SELECT pid {_OTHERS}".encode()).fetchall():
            await asyncio.sleep(0.01)


@contextmanager
def locked_row(conninfo: str) -> Iterator[None]:
    """Hold the locks of all conversations in another connection."""
    with psycopg.connect(conninfo) as connection:
        connection.execute("SELECT 1 FROM aswarm_conversation FOR UPDATE")
        yield


def end_waiting(admin: psycopg.Connection) -> None:
    """End the connection that waits for a lock."""
    admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")


async def until_waiting(admin: psycopg.Connection) -> None:
    """Wait until a connection waits for a lock."""
    with anyio.fail_after(60):
        while admin.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone() is None:
            await asyncio.sleep(0.01)


async def test_a_server_that_is_not_there_is_an_error() -> None:
    """It is met when the store is opened."""
    with pytest.raises(ConfigurationError, match="the store cannot be opened in PostgreSQL: ") as caught:
        async with PostgresStore("host=127.0.0.1 port=1"):
            pass
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)


async def test_without_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match='install the extra "postgres"'):
        PostgresStore("")


@pytest.mark.processes
async def test_a_newer_version_is_refused(conninfo: str, admin: psycopg.Connection) -> None:
    """The text says which versions."""
    async with PostgresStore(conninfo):
        pass
    admin.execute("UPDATE aswarm_format_61737763 SET version = 99")
    with pytest.raises(ConfigurationError, match="its format is 99, this version reads 4"):
        async with PostgresStore(conninfo):
            pass


async def test_many_open_an_empty_database_at_once(conninfo: str) -> None:
    """One of them makes the tables."""

    async def use(number: int) -> None:
        async with PostgresStore(conninfo) as store:
            await store.write(str(number), change(None))

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(use, number)
    async with PostgresStore(conninfo) as store:
        assert len(await store.list()) == 8


async def test_a_role_that_may_not_make_tables(conninfo: str, admin: psycopg.Connection) -> None:
    """It uses those that are there."""
    async with PostgresStore(conninfo):
        pass
    role = conninfo.rpartition("test_")[2]
    for statement in (
        f"CREATE ROLE reader_{role} LOGIN",
        f"GRANT USAGE ON SCHEMA test_{role} TO reader_{role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA test_{role} TO reader_{role}",
    ):
        admin.execute(statement.encode())
    async with PostgresStore(conninfo.replace("postgres:@", f"reader_{role}:@")) as store:
        await store.write("a", change(None))
        assert await store.load("a")


async def test_a_connection_that_the_server_has_closed_is_replaced(conninfo: str, admin: psycopg.Connection) -> None:
    """A restart of the server is not seen, if no transaction was going on."""
    async with PostgresStore(conninfo) as store:
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(store.write, str(number), change(None))
        assert end_others(admin) == 1
        assert len(await store.list()) == 5


async def test_a_connection_that_breaks_in_a_transaction(conninfo: str, admin: psycopg.Connection) -> None:
    """The transaction is done with the next connection."""
    async with PostgresStore(conninfo) as store:
        first = change(None, user("1"))
        await store.write("a", first)
        with locked_row(conninfo):
            writing = asyncio.create_task(store.write("a", change(first, user("2"))))
            await until_waiting(admin)
            end_waiting(admin)
            await until_waiting(admin)
        await writing
        stored = await store.load("a")
        assert stored is not None and len(stored.messages) == 2


async def test_a_transaction_that_waits_for_a_lock_is_an_error(conninfo: str) -> None:
    """A lock of another program must not hold all runs for ever; a `lock_timeout` of the caller is kept."""
    first = change(None, user("1"))
    async with PostgresStore(f"{conninfo}%20-clock_timeout%3D300") as store:
        await store.write("a", first)
        with locked_row(conninfo):
            with pytest.raises(StoreError, match="lock timeout"):
                await store.write("a", change(first, user("2")))
            assert await store.load("a")
        await store.write("a", change(first, user("2")))


async def test_a_transaction_waits_ten_seconds_for_a_lock(conninfo: str) -> None:
    """The caller's other options are kept."""
    async with PostgresStore(conninfo) as store:
        assert await store._database.run(single, "SHOW lock_timeout") == [("10s",)]
        assert await store._database.run(single, "SHOW search_path") == [(f"test_{conninfo.rpartition('test_')[2]}",)]


async def test_a_task_that_is_cancelled_in_a_transaction(conninfo: str, admin: psycopg.Connection) -> None:
    """The transaction is done, and no other one gets what it has started."""
    first = change(None, user("1"))
    async with PostgresStore(conninfo) as store:
        await store.write("a", first)
        with locked_row(conninfo):
            task = asyncio.create_task(store.write("a", change(first, user("2"))))
            await until_waiting(admin)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        stored = await store.load("a")
        assert stored is not None and len(stored.messages) == 2


async def test_a_task_that_is_cancelled_while_it_opens(conninfo: str, admin: psycopg.Connection) -> None:
    """No connection stays."""
    admin.execute("SELECT pg_advisory_lock(%s)", (SCHEMA.application,))  # under which the tables are made
    store = PostgresStore(f"{conninfo}%20-clock_timeout%3D1000")
    task = asyncio.create_task(store.__aenter__())
    await until_waiting(admin)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_alone(admin)
    admin.execute("SELECT pg_advisory_unlock(%s)", (SCHEMA.application,))
    async with store:
        assert await store.load("a") is None


async def test_tasks_of_every_event_loop_may_use_a_store(conninfo: str) -> None:
    """From when it is opened until it is closed."""
    store = PostgresStore(conninfo)
    with pytest.raises(ConfigurationError, match="not open in this process"):
        await store.load("a")
    async with store:
        await asyncio.to_thread(asyncio.run, store.write("a", change(None)))
        assert await store.load("a")
    with pytest.raises(ConfigurationError, match="not open in this process"):
        await store.load("a")


async def test_a_store_that_is_closed_while_a_transaction_goes_on(conninfo: str, admin: psycopg.Connection) -> None:
    """The transaction ends, and leaves no connection behind."""
    store = PostgresStore(conninfo)
    await store.__aenter__()
    await store.write("a", change(None))
    task = asyncio.create_task(store.write("b", change(None)))
    await asyncio.sleep(0)
    await store.aclose()
    await task
    await until_alone(admin)


@pytest.mark.processes
async def test_a_forked_child_leaves_the_connection(conninfo: str) -> None:
    """The child has none, and its end does not close that of its parent."""
    async with PostgresStore(conninfo) as store:
        backend = await store._database.run(single, "SELECT pg_backend_pid()")
        if (child := os.fork()) == 0:
            try:
                store.load("a").send(None)
            except ConfigurationError:
                gc.collect()
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert await store._database.run(single, "SELECT pg_backend_pid()") == backend

"""PostgreSQL: connecting, and what happens when the server or a connection goes away."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator

import anyio
import psycopg
import pytest
from stores import change, user

from aswarm import ConfigurationError, RunError
from aswarm.conversations import PostgresStore

pytestmark = pytest.mark.asyncio


@pytest.fixture
def admin(conninfo: str) -> Iterator[psycopg.Connection]:
    """Another connection to the same schema."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        yield connection


def end_others(admin: psycopg.Connection) -> int:
    """End the connections of the store, as a restart of the server does; how many there were."""
    ended = admin.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    return len(ended.fetchall())


async def until_waiting(admin: psycopg.Connection) -> None:
    """Wait until a connection waits for a lock."""
    with anyio.fail_after(10):
        while admin.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone() is None:
            await asyncio.sleep(0.01)


async def test_a_server_that_is_not_there_is_an_error() -> None:
    """It is met when the store is opened."""
    with pytest.raises(ConfigurationError, match="the store cannot be opened: PostgreSQL cannot be used") as caught:
        async with PostgresStore("host=127.0.0.1 port=1"):
            pass
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)


async def test_without_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match='install the extra "postgres"'):
        PostgresStore("")


async def test_no_connections_are_an_error() -> None:
    """Every transaction would wait for ever."""
    with pytest.raises(ConfigurationError, match="max_connections must be at least 1"):
        PostgresStore("", max_connections=0)


async def test_a_newer_version_is_refused(conninfo: str, admin: psycopg.Connection) -> None:
    """The text says which versions."""
    async with PostgresStore(conninfo):
        pass
    admin.execute("UPDATE aswarm_store SET version = 2")
    with pytest.raises(ConfigurationError, match="their format is 2, this version reads 1"):
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


async def test_connections_that_the_server_has_closed_are_replaced(conninfo: str, admin: psycopg.Connection) -> None:
    """A restart of the server is not seen, if no transaction was going on."""
    async with PostgresStore(conninfo) as store:
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(store.write, str(number), change(None))
        assert end_others(admin) == 5
        assert len(await store.list()) == 5


async def test_a_connection_that_breaks_in_a_transaction(conninfo: str, admin: psycopg.Connection) -> None:
    """The transaction fails, and the next one is done."""
    async with PostgresStore(conninfo) as store:
        first = change(None, user("1"))
        await store.write("a", first)
        with admin.transaction():
            admin.execute("SELECT 1 FROM aswarm_conversation FOR UPDATE")
            writing = asyncio.create_task(store.write("a", change(first, user("2"))))
            await until_waiting(admin)
            end_others(admin)
            with pytest.raises(RunError, match="PostgreSQL cannot be used"):
                await writing
        await store.write("a", change(first, user("2")))


async def test_a_transaction_that_takes_too_long_is_an_error(conninfo: str, admin: psycopg.Connection) -> None:
    """It is left, and its connection is closed; a lock of another program must not hold a run for ever."""
    first = change(None, user("1"))
    async with PostgresStore(conninfo) as store:
        await store.write("a", first)
    async with PostgresStore(conninfo, timeout=0.3) as store:
        with admin.transaction():
            admin.execute("SELECT 1 FROM aswarm_conversation FOR UPDATE")
            with pytest.raises(RunError, match=r"no answer within 0\.3 s"):
                await store.write("a", change(first, user("2")))
        await store.write("a", change(first, user("2")))


async def test_a_task_that_is_cancelled_in_a_transaction(conninfo: str, admin: psycopg.Connection) -> None:
    """The connection is closed, and no other transaction gets what it had begun."""
    first = change(None, user("1"))
    async with PostgresStore(conninfo, max_connections=1) as store:
        await store.write("a", first)
        with admin.transaction():
            admin.execute("SELECT 1 FROM aswarm_conversation FOR UPDATE")
            task = asyncio.create_task(store.write("a", change(first, user("2"))))
            await until_waiting(admin)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        stored = await store.load("a")
        assert stored is not None and len(stored.messages) == 1


async def test_a_task_that_is_cancelled_while_it_opens(conninfo: str, admin: psycopg.Connection) -> None:
    """No connection stays."""
    admin.execute("SELECT pg_advisory_lock(1634957155)")  # under which the tables are made
    task = asyncio.create_task(PostgresStore(conninfo).__aenter__())
    await until_waiting(admin)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with anyio.fail_after(60):
        while end_others(admin):
            await asyncio.sleep(0.01)
    admin.execute("SELECT pg_advisory_unlock(1634957155)")


async def test_a_store_belongs_to_one_event_loop(conninfo: str) -> None:
    """Its connections do. The error says what to do; so does one before it is opened, and after it is closed."""
    store = PostgresStore(conninfo)
    with pytest.raises(ConfigurationError, match="not open in this event loop"):
        await store.load("a")
    async with store:
        with pytest.raises(ConfigurationError, match="not open in this event loop"):
            await asyncio.to_thread(asyncio.run, store.load("a"))
    with pytest.raises(ConfigurationError, match="not open in this event loop"):
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
    with anyio.fail_after(60):
        while end_others(admin):
            await asyncio.sleep(0.01)


async def test_a_connection_whose_begin_is_cancelled_is_closed(conninfo: str) -> None:
    """The one that was idle; another one takes its place."""
    async with PostgresStore(conninfo, max_connections=1) as store:
        for _ in range(3):
            task = asyncio.create_task(store.load("a"))
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await store.load("a") is None

"""PostgreSQL: connecting, and the loss of the server or of a connection."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import psycopg
import pytest

from aswarm import ConfigurationError, StoreError
from aswarm.conversations import PostgresStore
from tests.support.conversations.stores import change, user

pytestmark = pytest.mark.asyncio


@pytest.fixture
def admin(conninfo: str) -> Iterator[psycopg.Connection]:
    """Another connection to the same schema."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        yield connection


APPLICATION = 0x61737763  # the number of the store in a database
_OTHERS = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"


def others(admin: psycopg.Connection, column: str = "pid") -> list[Any]:
    """Return a column of the connections of the store."""
    return admin.execute(f"SELECT {column} {_OTHERS}".encode()).fetchall()


async def until_alone(admin: psycopg.Connection) -> None:
    """Wait until the store has no connection: the server notices a closed connection a moment later."""
    with anyio.fail_after(60):
        while others(admin):
            await asyncio.sleep(0.01)


@contextmanager
def locked_row(conninfo: str) -> Iterator[None]:
    """Hold the locks of all conversations in another connection."""
    with psycopg.connect(conninfo) as connection:
        connection.execute("SELECT 1 FROM aswarm_conversation FOR UPDATE")
        yield


_WAITING = "FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


async def until_waiting(admin: psycopg.Connection) -> None:
    """Wait until a connection waits for a lock."""
    with anyio.fail_after(60):
        while admin.execute(f"SELECT 1 {_WAITING}".encode()).fetchone() is None:
            await asyncio.sleep(0.01)


async def test_a_server_that_is_not_there_is_an_error() -> None:
    """The error comes when the store is opened."""
    with pytest.raises(ConfigurationError, match="the store cannot be opened in PostgreSQL: ") as caught:
        async with PostgresStore("host=127.0.0.1 port=1"):
            pass
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)


async def test_without_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match='install the extra "postgres"'):
        PostgresStore("")


async def test_a_role_that_may_not_make_tables(conninfo: str, admin: psycopg.Connection) -> None:
    """A role without the right to make tables uses the existing tables."""
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


async def test_a_connection_that_breaks_in_a_transaction(conninfo: str, admin: psycopg.Connection) -> None:
    """The transaction is done with the next connection."""
    async with PostgresStore(conninfo) as store:
        first = change(None, user("1"))
        await store.write("a", first)
        with locked_row(conninfo):
            writing = asyncio.create_task(store.write("a", change(first, user("2"))))
            await until_waiting(admin)
            admin.execute(f"SELECT pg_terminate_backend(pid, 5000) {_WAITING}".encode())
            await until_waiting(admin)
        await writing
        stored = await store.load("a")
        assert stored is not None and len(stored.messages) == 2


async def test_a_transaction_that_waits_for_a_lock_is_an_error(conninfo: str) -> None:
    """A lock of another program does not stop all runs; a `lock_timeout` of the caller is kept."""
    first = change(None, user("1"))
    async with PostgresStore(f"{conninfo}%20-clock_timeout%3D300") as store:
        await store.write("a", first)
        with locked_row(conninfo):
            with pytest.raises(StoreError, match="lock timeout"):
                await store.write("a", change(first, user("2")))
            assert await store.load("a")
        await store.write("a", change(first, user("2")))


async def test_a_task_that_is_cancelled_while_it_opens(conninfo: str, admin: psycopg.Connection) -> None:
    """No connection stays."""
    admin.execute("SELECT pg_advisory_lock(%s)", (APPLICATION,))  # under which the tables are made
    store = PostgresStore(f"{conninfo}%20-clock_timeout%3D1000")
    task = asyncio.create_task(store.__aenter__())
    await until_waiting(admin)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until_alone(admin)
    admin.execute("SELECT pg_advisory_unlock(%s)", (APPLICATION,))
    async with store:
        assert await store.load("a") is None


@pytest.mark.processes
async def test_a_forked_child_leaves_the_connection(conninfo: str, admin: psycopg.Connection) -> None:
    """The child has no connection, and its end does not close the connection of its parent."""
    async with PostgresStore(conninfo) as store:
        backends = others(admin)
        if (child := os.fork()) == 0:
            try:
                store.load("a").send(None)
            except ConfigurationError:
                gc.collect()
                os._exit(0)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert await store.load("a") is None
        assert others(admin) == backends != []

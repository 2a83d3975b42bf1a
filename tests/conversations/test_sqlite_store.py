"""The SQLite file: its owner, its readers, and its errors."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from aswarm import ConfigurationError, StoreError
from aswarm.conversations import SQLiteStore
from tests.support.conversations.stores import change, user


async def open_and_close(path: Path) -> None:
    async with SQLiteStore(path):
        pass


async def test_only_the_owner_can_read_the_files(path: Path) -> None:
    """The files beside the database have the same mode, and the umask does not matter."""
    before = os.umask(0)
    try:
        async with SQLiteStore(path) as store:
            await store.write("a", change(None, user("1")))
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes.pop("chats.sqlite") == 0o600
    assert modes and set(modes.values()) == {0o600}


async def test_a_deleted_text_is_not_in_the_file(path: Path) -> None:
    """A deleted text is in no file once the store is closed."""
    async with SQLiteStore(path) as store:
        await store.write("a", change(None, user("a secret")))
        await store.delete("a")
    assert b"a secret" not in path.read_bytes()


@pytest.mark.parametrize("name", ["", ":memory:"])
async def test_a_name_that_keeps_nothing_is_an_error(name: str) -> None:
    """SQLite takes it, and the conversations would be lost."""
    with pytest.raises(ConfigurationError, match="use a MemoryStore"):
        SQLiteStore(name)


def without_log(statement: str) -> str:
    """Some network file systems have no write-ahead log, and two processes would destroy the file."""
    return "SELECT 'delete'" if "WAL" in statement else statement


def replaced(monkeypatch: pytest.MonkeyPatch, replace: Any) -> None:
    """Let SQLite execute other statements."""
    connect = sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, statement, *values):  # type: ignore[no-untyped-def]
            return super().execute(replace(statement), *values)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Connection, **k))


async def test_a_file_that_cannot_be_used_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not changed, and no folder is made."""
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigurationError, match="cannot be opened: file is not a database"):
        await open_and_close(path)
    assert path.read_bytes() == b"no database" * 1000
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        await open_and_close(path.parent / "none" / "chats.sqlite")
    other = path.with_name("other.sqlite")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE x (y)")
    with pytest.raises(ConfigurationError, match="a database of another program"):
        await open_and_close(other)
    newer = path.with_name("newer.sqlite")
    await open_and_close(newer)
    with closing(sqlite3.connect(newer)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match=r"newer version of aswarm \(its format is 99, this version reads 6\)"):
        await open_and_close(newer)
    replaced(monkeypatch, without_log)
    with pytest.raises(ConfigurationError, match="no write-ahead log there"):
        await open_and_close(path.with_name("new.sqlite"))


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        (3, sqlite3.SQLITE_BUSY),
        (10_000, sqlite3.SQLITE_IOERR),
        pytest.param(10_000, sqlite3.SQLITE_BUSY, marks=pytest.mark.heavy),  # it takes ten seconds
    ],
)
async def test_another_process_makes_the_same_change(
    path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, code: int
) -> None:
    """SQLite does not wait when it changes to the write-ahead log; the store waits for some seconds if the file is busy."""
    left = failures

    def busy(statement: str) -> str:
        nonlocal left
        if "WAL" in statement and left:
            left -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = code
            raise error
        return statement

    replaced(monkeypatch, busy)
    with nullcontext() if failures == 3 else pytest.raises(ConfigurationError, match="database is locked"):
        await open_and_close(path)


async def test_a_store_works_while_it_is_open(path: Path) -> None:
    """Closing it twice is no error; it can be opened again, but not while it is open."""
    store = SQLiteStore(path)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="is not open in this process"):
            await store.load("a")
        async with store:
            with pytest.raises(RuntimeError, match="already open"):
                await store.__aenter__()
            assert await store.load("a") is None
        await store.aclose()


async def test_a_file_that_stays_locked_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that waits is a StoreError; reads work all the time, and writes work once the file is free."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k | {"timeout": 0.05}))
    async with SQLiteStore(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="cannot be used: database is locked"):
                await store.write("a", change(None))
            assert await store.load("a") is None
            other.execute("ROLLBACK")
        await store.write("a", change(None))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("content", [b"", b"no database" * 1000])
async def test_a_task_that_is_cancelled_while_it_opens(path: Path, content: bytes) -> None:
    """The file is closed again, if it could be opened at all."""
    path.write_bytes(content)
    store = SQLiteStore(path)
    task = asyncio.create_task(store.__aenter__())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ConfigurationError, match="is not open"):
        await store.load("a")
    path.unlink()
    async with store:
        assert await store.load("a") is None


async def test_a_fork_whose_answer_was_lost_is_made_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction was committed, and is repeated."""
    async with SQLiteStore(path) as store:
        await store.write("a", change(None, user("1")))
        submit = store._database.submit

        async def twice(work: Any, **options: bool) -> Any:
            await submit(work, **options)
            return await submit(work, **options)

        monkeypatch.setattr(store._database, "submit", twice)
        await store.fork("a", "b")
        forked = await store.load("b")
    assert forked is not None
    assert forked.messages == [user("1")]

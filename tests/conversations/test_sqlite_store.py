"""The SQLite file: whose it is, who may read it, and what it says when it cannot be used."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from aswarm import ConfigurationError, StoreError
from aswarm.conversations import Conflict, SQLiteStore
from tests.support.conversations.stores import change, user

pytestmark = pytest.mark.anyio


async def test_only_the_owner_can_read_the_files(path: Path) -> None:
    """Those beside it too, whatever the umask."""
    before = os.umask(0)
    try:
        async with SQLiteStore(path) as store:
            await store.write("a", change(None, user("1")))
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes.pop("chats.sqlite") == 0o600
    assert modes and set(modes.values()) == {0o600}


async def test_one_file_is_left(path: Path) -> None:
    """The write-ahead log is moved into it when the store is closed."""
    async with SQLiteStore(path) as store:
        await store.write("a", change(None, user("1")))
    assert [each.name for each in path.parent.iterdir()] == ["chats.sqlite"]
    async with SQLiteStore(path) as store:
        assert await store.load("a")


async def test_what_was_deleted_is_not_in_the_file(path: Path) -> None:
    """Nor in the files beside it, once the store is closed."""
    async with SQLiteStore(path) as store:
        await store.write("a", change(None, user("a secret")))
        await store.delete("a")
    assert b"a secret" not in path.read_bytes()


@pytest.mark.parametrize("name", ["", ":memory:"])
async def test_a_name_that_keeps_nothing_is_an_error(name: str) -> None:
    """SQLite takes it, and the conversations would be lost."""
    with pytest.raises(ConfigurationError, match="use a MemoryStore"):
        SQLiteStore(name)


async def test_a_file_of_another_kind_is_refused(path: Path) -> None:
    """And is not changed."""
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigurationError, match="cannot be opened: file is not a database"):
        async with SQLiteStore(path):
            pass
    assert path.read_bytes() == b"no database" * 1000


async def test_a_database_of_another_program_is_refused(path: Path) -> None:
    """Its tables are none of ours."""
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE x (y)")
    with pytest.raises(ConfigurationError, match="a database of another program"):
        async with SQLiteStore(path):
            pass


async def test_a_newer_version_is_refused(path: Path) -> None:
    """The text says which versions."""
    async with SQLiteStore(path):
        pass
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match=r"newer version of aswarm \(its format is 99, this version reads 4\)"):
        async with SQLiteStore(path):
            pass


async def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """No folder is made."""
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        async with SQLiteStore(tmp_path / "none" / "chats.sqlite"):
            pass


async def test_a_file_without_a_write_ahead_log_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have none, and two processes would destroy the file."""
    connect = sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, statement, *values):  # type: ignore[no-untyped-def]
            return super().execute("SELECT 'delete'" if "WAL" in statement else statement, *values)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Connection, **k))
    with pytest.raises(ConfigurationError, match="no write-ahead log there"):
        async with SQLiteStore(path):
            pass


@pytest.mark.parametrize("failures", [3, 10_000])
async def test_another_process_makes_the_same_change(
    path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """SQLite does not wait when it changes to the write-ahead log; the store does, for some seconds."""
    connect = sqlite3.connect
    left = [failures]
    monkeypatch.setattr("aswarm._sql.sqlite._BUSY_SECONDS", 0.2)

    class Connection(sqlite3.Connection):
        def execute(self, statement, *values):  # type: ignore[no-untyped-def]
            if "WAL" in statement and left[0]:
                left[0] -= 1
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                raise error
            return super().execute(statement, *values)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Connection, **k))
    if failures == 3:
        async with SQLiteStore(path) as store:
            assert await store.load("a") is None
    else:
        with pytest.raises(ConfigurationError, match="database is locked"):
            async with SQLiteStore(path):
                pass


async def test_a_store_that_is_not_open_says_so(path: Path) -> None:
    """Before it is opened, and after it is closed; closing it twice is no error."""
    store = SQLiteStore(path)
    with pytest.raises(ConfigurationError, match="is not open in this process"):
        await store.load("a")
    async with store:
        assert await store.load("a") is None
    await store.aclose()
    with pytest.raises(ConfigurationError, match="is not open in this process"):
        await store.load("a")


async def test_a_store_can_be_opened_again(path: Path) -> None:
    """The same object."""
    store = SQLiteStore(path)
    for _ in range(2):
        async with store:
            await store.delete("a")


async def test_a_store_that_is_open_is_not_opened_again(path: Path) -> None:
    """It would have two threads. The store stays open."""
    async with SQLiteStore(path) as store:
        with pytest.raises(RuntimeError, match="already open"):
            await store.__aenter__()
        assert await store.load("a") is None


async def test_two_stores_of_one_file(path: Path) -> None:
    """They are as two processes: each sees what the other one wrote, and the second writer is a conflict."""
    async with SQLiteStore(path) as one, SQLiteStore(path) as two:
        first = change(None, user("1"))
        await one.write("a", first)
        stored = await two.load("a")
        assert stored is not None and stored.revision == first.revision
        await two.write("a", change(stored, user("2")))
        with pytest.raises(Conflict):
            await one.write("a", change(first, user("3")))


async def test_many_open_a_new_file_at_once(path: Path) -> None:
    """One of them makes the tables."""

    async def use(number: int) -> None:
        async with SQLiteStore(path) as store:
            await store.write(str(number), change(None))

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(use, number)
    async with SQLiteStore(path) as store:
        assert len(await store.list()) == 10


async def test_a_file_that_stays_locked_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A StoreError for each transaction that waits, and the store can be used once the file is free; it can be read all the time."""
    monkeypatch.setattr("aswarm._sql.sqlite._BUSY_SECONDS", 0.05)
    async with SQLiteStore(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="cannot be used: database is locked"):
                await store.write("a", change(None))
            assert await store.load("a") is None
            other.execute("ROLLBACK")
        await store.write("a", change(None))


async def test_a_full_disk_is_an_error(path: Path) -> None:
    """What was written before is there, and so is what is written once there is room."""
    first = change(None, user("1"))
    async with SQLiteStore(path) as store:
        await store.write("a", first)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        try:
            with pytest.raises(StoreError, match="cannot be used"):
                await store.write("a", change(first, user("x" * 1_000_000)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, ignored)
        stored = await store.load("a")
        assert stored is not None and len(stored.messages) == 1
        await store.write("a", change(first, user("2")))


async def test_a_damaged_table_is_an_error_of_one_transaction(path: Path) -> None:
    """Others that are committed with it are done."""
    async with SQLiteStore(path) as store:
        await store.write("a", change(None))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("DROP TABLE aswarm_message")
        with pytest.raises(StoreError, match="no such table: aswarm_message"):
            await store.load("a")
        assert not await store.rename("b", "No such conversation")


async def test_a_task_that_is_cancelled_while_it_waits(path: Path) -> None:
    """Whatever it began is done or not, and the store goes on."""
    async with SQLiteStore(path) as store:
        for number in range(20):
            with anyio.move_on_after(0):
                await store.write(str(number), change(None))
        await store.write("last", change(None))
        assert await store.load("last")


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


@pytest.mark.processes
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_store_is_not_open_in_a_forked_child(path: Path) -> None:
    """It says so, and does not wait for a thread that the child does not have."""
    async with SQLiteStore(path) as store:
        pid = os.fork()
        if not pid:
            try:
                store.load("a").send(None)
            except ConfigurationError:
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0

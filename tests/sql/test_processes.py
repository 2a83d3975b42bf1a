"""`Processes` and its locks: a process is dead after its end, however it ends; not while it is slow or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import psycopg
import pytest

from aswarm import ConfigurationError
from aswarm._sql.databases import PostgresServer, SQLiteFile, memory
from aswarm._sql.processes import FileLocks, Liveness, PostgresLocks, Processes
from aswarm._sql.transactions import Schema, single
from tests.support.conversations.stores import empty_schema

SCHEMA = Schema(1, 1, "a list", ("CREATE TABLE item (name TEXT PRIMARY KEY)",))
OTHER = """
import sys
import anyio
from aswarm._sql.databases import PostgresServer, SQLiteFile
from aswarm._sql.processes import Processes
from aswarm._sql.transactions import Schema

async def main(place):
    schema = Schema(1, 1, "a list", ("CREATE TABLE item (name TEXT PRIMARY KEY)",))
    database = PostgresServer(place, schema) if "://" in place else SQLiteFile(place, schema)
    async with Processes(database, "other").joined():
        print("joined", flush=True)
        await anyio.sleep_forever()

anyio.run(main, sys.argv[1])
"""


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path or the connection string of a database."""
    is_file = request.param == "sqlite"
    return str(tmp_path / "list.sqlite") if is_file else empty_schema(request.getfixturevalue("postgres"))


def opened_later(place: str) -> SQLiteFile | PostgresServer:
    return PostgresServer(place, SCHEMA) if "://" in place else SQLiteFile(place, SCHEMA)


@pytest.fixture
async def database(place: str) -> AsyncIterator[SQLiteFile | PostgresServer]:
    made = opened_later(place)
    await made.open()
    yield made
    await made.aclose()


@contextmanager
def other_process(place: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has joined with the name "other"."""
    process = subprocess.Popen([sys.executable, "-c", OTHER, place], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "joined\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def is_dead(processes: Processes, name: str) -> bool:
    async with processes.dead(name) as answer:
        return answer


async def until_dead(processes: Processes, name: str) -> None:
    """Wait until the system has noticed the death of a process."""
    with anyio.fail_after(120):
        while not await is_dead(processes, name):
            await anyio.sleep(0.01)


@pytest.mark.processes
async def test_a_process_that_is_killed_is_dead(place: str, database: SQLiteFile | PostgresServer) -> None:
    """A process that is stopped by SIGSTOP is alive, for however long."""
    processes = Processes(database, "own")
    with other_process(place) as other:
        async with processes.joined():
            os.kill(other.pid, signal.SIGSTOP)
            assert not await is_dead(processes, "other")
            assert not await is_dead(processes, "own")
            other.kill()
            await until_dead(processes, "other")


async def test_one_process_finds_a_death_at_a_time(database: SQLiteFile | PostgresServer) -> None:
    """The work of the dead process is taken once."""
    one, two = Processes(database, "one"), Processes(database, "two")
    async with one.joined(), two.joined():
        async with one.dead("gone") as first, two.dead("gone") as second:
            assert (first, second) == (True, False)
        assert await is_dead(two, "gone")


@pytest.mark.processes
async def test_a_forked_child_does_not_keep_its_parent_alive(database: SQLiteFile | PostgresServer) -> None:
    """Nor does its end release the lock of the parent."""
    one, two = Processes(database, "one"), Processes(database, "two")
    async with two.joined():
        async with one.joined():
            if (short := os.fork()) == 0:
                os._exit(0)
            os.waitpid(short, 0)
            assert not await is_dead(two, "one")
            if (child := os.fork()) == 0:
                signal.pause()
                os._exit(0)
        try:
            await until_dead(two, "one")
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.processes
async def test_the_version_changes_when_another_process_writes(
    place: str, database: SQLiteFile | PostgresServer
) -> None:
    """So a process that waits reads the database only then."""
    other = opened_later(place)
    await other.open()
    processes = Processes(database, "own")
    async with processes.joined():
        with anyio.fail_after(120):  # until PostgreSQL listens
            while "://" in place and not await processes.version():
                await anyio.sleep(0.01)
        before = await processes.version()
        assert await processes.version() == before
        await other.submit(lambda: single("INSERT INTO item VALUES (?)", "a"), notifies=True)
        with anyio.fail_after(120):
            while await processes.version() == before:
                await anyio.sleep(0.01)
    await other.aclose()


async def test_a_database_in_memory_has_one_process() -> None:
    """No other one is dead."""
    processes = Processes(memory(SCHEMA))
    async with processes.joined():
        assert (processes.is_shared, processes.is_held) == (False, True)
        assert not await is_dead(processes, "other")


# --- locks ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "postgres"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Liveness, Liveness]]:
    """The locks of two processes, which hold the names "one" and "two"."""
    if request.param == "sqlite":
        locks: list[Liveness] = [FileLocks(f"{tmp_path}/runs.db") for _ in range(2)]
    else:
        locks = [PostgresLocks(request.getfixturevalue("postgres")) for _ in range(2)]
    for name, each in zip(("one", "two"), locks, strict=True):
        each.hold(name)
    yield locks[0], locks[1]
    for each in locks:
        each.close()


def test_the_lock_of_a_live_process(pair: tuple[Liveness, Liveness]) -> None:
    """No process can take it, not even its own."""
    one, two = pair
    assert one.is_held
    assert one.check()
    assert not two.take("one")
    assert not one.take("one")


def test_the_lock_of_a_dead_process(pair: tuple[Liveness, Liveness]) -> None:
    """One process takes it, and it is free again after `drop`."""
    one, two = pair
    assert two.take("dead")
    assert not one.take("dead")
    two.drop("dead")
    assert one.take("dead")


@pytest.mark.parametrize("checks", [False, True])
def test_a_closed_lock_is_free(pair: tuple[Liveness, Liveness], checks: bool) -> None:
    """A process that stops releases its lock. A thread that still checks it afterwards does not take it again."""
    one, two = pair
    one.close()
    assert not (checks and one.check())
    assert not one.is_held
    assert two.take("one")


@pytest.mark.slow
def test_two_processes_with_one_name(pair: tuple[Liveness, Liveness]) -> None:
    """The second one is refused, after it has waited for a check by another process."""
    two = pair[1]
    two.close()
    with pytest.raises(ConfigurationError, match="executor id 'one'"):
        two.hold("one")


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks")
def test_a_forked_child_does_not_keep_a_locked_file(tmp_path: Path) -> None:
    """The lock is free as soon as the parent has none, even while the child lives."""
    one, two = (FileLocks(f"{tmp_path}/runs.db") for _ in range(2))
    one.hold("one")
    is_ready, ready = os.pipe()
    if (child := os.fork()) == 0:
        os.write(ready, b"!")
        signal.pause()
    try:
        os.read(is_ready, 1)
        assert not two.take("one")
        os.close(one._files.pop("one"))  # as the operating system does when the parent dies
        assert two.take("one")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(is_ready)
        os.close(ready)
        two.close()


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks")
def test_a_forked_child_does_not_keep_a_session(postgres: str) -> None:
    """The child has nothing in the place of the socket, and the session of the parent goes on."""
    locks = PostgresLocks(postgres)
    locks.hold("parent")
    if (child := os.fork()) == 0:
        has_nothing = os.path.samestat(os.fstat(locks._connection.fileno()), Path(os.devnull).stat())
        os._exit(0 if has_nothing and not locks.is_held else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert locks.check()
    assert locks.is_held
    locks.close()


def test_a_file_with_two_paths_has_the_same_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a symbolic link and by a relative path, also after a change of the working directory."""
    (tmp_path / "link.db").symlink_to(tmp_path / "runs.db")
    monkeypatch.chdir(tmp_path)
    locks = [FileLocks(path) for path in ("runs.db", "link.db", f"{tmp_path}/runs.db")]
    monkeypatch.chdir("/")
    for name, each in zip("abc", locks, strict=True):
        each.hold(name)
    assert [each.take(name) for each in locks for name in "abc"] == [False] * 9
    for each in locks:
        each.close()


def test_files_of_dead_processes(tmp_path: Path) -> None:
    """The next process removes them, and leaves other files and live processes alone."""
    live, dead, own = tmp_path / "runs.db-live.lock", tmp_path / "runs.db-dead.lock", tmp_path / "runs.db-own.lock"
    other = tmp_path / "other.db-x.lock"
    locks = [FileLocks(f"{tmp_path}/runs.db") for _ in range(2)]
    locks[0].hold("live")
    dead.touch()
    other.touch()
    locks[1].hold("own")
    assert sorted(tmp_path.iterdir()) == [other, live, own]
    for each in locks:
        each.close()
    assert list(tmp_path.iterdir()) == [other]


def _end_session(server: str, locks: PostgresLocks) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", (locks._backend,))


def test_a_lost_session_is_replaced(postgres: str) -> None:
    """`check` notices the loss; the next one takes the lock in a new session."""
    locks = PostgresLocks(postgres)
    locks.hold("lost")
    _end_session(postgres, locks)
    assert (locks.check(), locks.is_held) == (False, False)
    assert (locks.check(), locks.is_held) == (True, True)
    locks.close()


def test_a_lost_lock_that_another_process_has_taken(postgres: str) -> None:
    """The process is without its lock until the other one drops it."""
    locks, other = PostgresLocks(postgres), PostgresLocks(postgres)
    locks.hold("lost")
    other.hold("other")
    _end_session(postgres, locks)
    assert not locks.check()
    assert other.take("lost")
    assert not locks.check()
    other.drop("lost")
    assert locks.check()
    locks.close()
    other.close()


def test_a_session_without_the_lock_is_a_loss(postgres: str) -> None:
    """A pooler may give the connection another backend, whose session does not hold the lock."""
    locks = PostgresLocks(postgres)
    locks.hold("pooled")
    locks._connection.execute("SELECT pg_advisory_unlock_all()")
    assert locks._verify() == 0
    assert locks.check()
    assert locks._verify() != 0
    locks.close()


def test_locks_that_the_system_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on Windows, not on each file system, and not without a server."""
    with monkeypatch.context() as patch:
        patch.setattr("os.name", "nt")
        with pytest.raises(ConfigurationError, match="needs a POSIX system"):
            FileLocks("runs.db")
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", lambda *_: os.fstat(-1))
        with pytest.raises(ConfigurationError, match="has no locks"):
            FileLocks(f"{tmp_path}/runs.db").hold("one")
    with pytest.raises(ConfigurationError, match="PostgreSQL cannot be reached"):
        PostgresLocks("postgresql://127.0.0.1:1/none").hold("one")


def test_locks_of_a_process_that_holds_none(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can take the lock of a dead process. A connection whose settings are refused is closed."""
    locks = PostgresLocks(postgres)
    locks.abandon()
    assert locks.take("dead")
    locks.close()
    monkeypatch.setattr("aswarm._sql.postgres._SETTINGS", "SET nothing")
    with pytest.raises(ConfigurationError, match="cannot be reached"):
        PostgresLocks(postgres).hold("one")


def test_a_lock_file_that_was_removed_meanwhile_is_not_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have taken and removed it."""
    monkeypatch.setattr("fcntl.flock", lambda *_: [each.unlink() for each in tmp_path.rglob("*") if each.is_file()])
    assert not FileLocks(f"{tmp_path}/runs.db").take("one")

"""`Processes`: a process is dead once it has ended, however; not while it is slow or stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from aswarm._sql.databases import PostgresServer, SQLiteFile, memory
from aswarm._sql.processes import Processes
from aswarm._sql.transactions import Schema, single
from tests.support.conversations.stores import empty_schema

pytestmark = pytest.mark.anyio

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
    if request.param == "sqlite":
        return str(tmp_path / "list.sqlite")
    return empty_schema(request.getfixturevalue("postgres"))


@pytest.fixture
async def database(place: str) -> AsyncIterator[SQLiteFile | PostgresServer]:
    """The open database."""
    made = PostgresServer(place, SCHEMA) if "://" in place else SQLiteFile(place, SCHEMA)
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
    """Ask once."""
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


async def test_one_process_is_told_of_a_death_at_a_time(database: SQLiteFile | PostgresServer) -> None:
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
    other = PostgresServer(place, SCHEMA) if "://" in place else SQLiteFile(place, SCHEMA)
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

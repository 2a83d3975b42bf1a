"""`Database`: the order of transactions, their commits, and the loss of a connection."""

from __future__ import annotations

import asyncio
import gc
import math
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psycopg
import pytest

from aswarm import ConfigurationError, StoreError
from aswarm._sql.database import Database, MemoryDatabase, ThreadedDatabase
from aswarm._sql.databases import PostgresServer, SQLiteFile
from aswarm._sql.sqlite import SQLiteConnection, in_memory
from aswarm._sql.transactions import PendingTransaction, Schema, Transaction, single
from tests.support.conversations.stores import empty_schema
from tests.support.sql.hooks import before_statements

SCHEMA = Schema(1, 1, "a list", ("CREATE TABLE item (name TEXT PRIMARY KEY)",))
COUNT = "SELECT count(*) FROM item"


class Server(SQLiteConnection):
    """A database that notes its commits, and loses its connection on demand."""

    def __init__(self) -> None:
        super().__init__(in_memory(SCHEMA)._connection, "the server")
        self.log: list[str] = []
        self.losses: list[str] = []  # "execute", "commit" (before it), "answer" (after it), one for each connection
        self.is_down = False
        self.is_connected = True

    def execute(self, statement: Any, parameters: Any = ()) -> Any:
        self._lose("execute")
        return super().execute(statement, parameters)

    def begin(self, *, reads_only: bool, durable: bool) -> None:
        self._lose("begin")
        self.log.append("read" if reads_only else "durable" if durable else "begin")
        super().begin(reads_only=reads_only, durable=durable)

    def commit(self, *, notifies: bool) -> None:
        self._lose("commit")
        super().commit(notifies=notifies)
        self.log.append("notify" if notifies else "commit")
        self._lose("answer")

    def _lose(self, moment: str) -> None:
        if self.losses[:1] == [moment]:
            del self.losses[0]
            self.is_connected = False
        if not self.is_connected:
            raise sqlite3.OperationalError("the connection is lost")

    def is_lost(self, error: Exception) -> bool:
        return not self.is_connected and isinstance(error, sqlite3.Error)

    def reconnect(self) -> None:
        if self.is_down:
            raise sqlite3.OperationalError("no answer")
        self.rollback()  # as a server does for a connection that is gone
        self.is_connected = True
        self.log.append("reconnect")


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def database(server: Server) -> AsyncIterator[ThreadedDatabase]:
    """An open database that is retried for ten seconds."""
    made = ThreadedDatabase("the list", lambda: server, retry_seconds=10)
    await made.open()
    yield made
    await made.aclose()


def add(name: str) -> Transaction[str]:
    yield "INSERT INTO item VALUES (?) ON CONFLICT DO NOTHING", (name,)
    return name


def fail_after_insert(name: str) -> Transaction[None]:
    yield from add(name)
    raise LookupError(name)


def make(name: str) -> Callable[[], Transaction[str]]:
    return lambda: add(name)


def ignore(_: PendingTransaction) -> None: ...


async def names(database: Database) -> list[str]:
    """The items in the order in which they were added."""
    return [name for (name,) in await database.run(single, "SELECT name FROM item ORDER BY rowid")]


async def hold(database: ThreadedDatabase) -> threading.Event:
    """Let the thread wait in a transaction until the event is set."""
    started, free = threading.Event(), threading.Event()

    def wait() -> Transaction[None]:
        started.set()
        free.wait(120)
        yield from ()

    database.put(wait, ignore)
    await anyio.to_thread.run_sync(started.wait)
    return free


async def test_transactions_run_in_the_order_in_which_they_came(database: ThreadedDatabase) -> None:
    """It does not matter whether a task waits for them."""
    done: list[Any] = []
    for name in "abc":
        database.put(make(name), lambda job: done.append(job.value))
    assert await database.run(add, "d") == "d"
    assert done == ["a", "b", "c"]
    assert await names(database) == ["a", "b", "c", "d"]


async def test_transactions_that_wait_share_a_commit(database: ThreadedDatabase, server: Server) -> None:
    """A commit costs as much as many statements. It is durable, and notifies, if one of them asks for it."""
    free = await hold(database)
    for number in range(50):
        database.put(make(str(number)), ignore, durable=number == 7, notifies=number == 8)
    free.set()
    await database.run(add, "last")
    assert server.log == ["durable", "notify"]
    assert len(await names(database)) == 51


async def test_a_commit_is_not_without_limit(database: ThreadedDatabase, server: Server) -> None:
    """Others must not wait for a thousand transactions."""
    free = await hold(database)
    for number in range(401):
        database.put(make(str(number)), ignore)
    free.set()
    while await database.run(single, COUNT) != [(401,)]:
        pass
    assert server.log.count("begin") >= 3


async def test_a_neighbour_that_fails_does_no_harm(database: ThreadedDatabase) -> None:
    """Its own changes are undone, and all others are committed."""
    free, results = await hold(database), list[Any]()
    for name in "abc":
        database.put(make(name), lambda job: results.append(job.error or job.value))
        database.put(lambda: fail_after_insert("x"), lambda job: results.append(type(job.error)))
    free.set()
    assert await names(database) == ["a", "b", "c"]
    assert results == ["a", LookupError, "b", LookupError, "c", LookupError]


async def test_an_error_of_a_transaction_is_raised_as_it_is(database: ThreadedDatabase) -> None:
    """An error of the database is a StoreError, whose cause is the error of the driver."""
    with pytest.raises(LookupError, match="x"):
        await database.run(fail_after_insert, "x")
    with pytest.raises(StoreError, match="the server cannot be used: no such table: missing") as caught:
        await database.run(single, "SELECT * FROM missing")
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert caught.value.retry_after > 0
    assert await names(database) == []


async def test_a_transaction_that_may_wait(database: ThreadedDatabase, server: Server) -> None:
    """It goes with the next one, in its order; or alone once its time is over."""
    done = threading.Event()
    database.put(make("a"), ignore, within=math.inf)
    await anyio.sleep(0.05)
    assert server.log == []
    await database.run(add, "b")
    assert server.log == ["begin", "commit"]
    assert await names(database) == ["a", "b"]
    started = time.monotonic()
    database.put(make("c"), lambda _: done.set(), within=0.1)
    await anyio.to_thread.run_sync(done.wait, 10)
    assert time.monotonic() - started >= 0.1
    assert await names(database) == ["a", "b", "c"]


async def test_closing_writes_the_rest(server: Server) -> None:
    """Transactions that wait for the next one are written too. Nothing can be put in afterwards."""
    database = ThreadedDatabase("the list", lambda: server)
    await database.open()
    results: list[Any] = []
    free = await hold(database)
    for name in "abc":
        database.put(make(name), lambda job: results.append(job.value), within=math.inf)
    free.set()
    await database.aclose()
    assert results == ["a", "b", "c"]
    with pytest.raises(ConfigurationError, match="the list is not open in this process"):
        database.put(make("d"), ignore)


async def test_a_query_alone_needs_no_transaction(database: ThreadedDatabase, server: Server) -> None:
    """Several queries that must see one state do; a transaction without a statement does not."""

    def nothing() -> Transaction[str]:
        yield from ()
        return "nothing"

    assert await database.submit(lambda: single(COUNT), reads_only=True) == [(0,)]
    assert await database.run(nothing) == "nothing"
    assert server.log == []
    await database.submit(lambda: single(COUNT), reads_only=True, snapshot=True)
    assert server.log == ["read", "commit"]


@pytest.mark.parametrize("is_exclusive", [True, False])
async def test_a_snapshot_beside_writes(database: ThreadedDatabase, server: Server, is_exclusive: bool) -> None:
    """If other processes can write during a transaction that writes, it has a transaction of its own, after the writes."""
    server.is_exclusive = is_exclusive
    free, counts = await hold(database), list[Any]()
    database.put(make("a"), ignore)
    database.put(lambda: single(COUNT), lambda job: counts.append(job.value), reads_only=True, snapshot=True)
    database.put(make("b"), ignore)
    free.set()
    counts.append(await database.submit(lambda: single(COUNT), reads_only=True, snapshot=True))
    assert counts == ([[(1,)], [(2,)]] if is_exclusive else [[(2,)], [(2,)]])
    assert server.log[:2] == ["begin", "commit"]
    assert server.log[2:] == [] if is_exclusive else set(server.log[2:]) == {"read", "commit"}
    assert await names(database) == ["a", "b"]


async def test_a_snapshot_on_a_server_beside_a_write(postgres: str) -> None:
    """Another program commits between its two queries, which read one state nevertheless."""
    conninfo = empty_schema(postgres)
    database = PostgresServer(conninfo, SCHEMA)
    await database.open()

    def commit_elsewhere(_: object) -> None:
        with psycopg.connect(conninfo, autocommit=True) as other:
            other.execute("INSERT INTO item VALUES ('other')")

    def twice() -> Transaction[list[Any]]:
        before = yield COUNT, ()
        yield commit_elsewhere, ()
        return [before, (yield COUNT, ())]

    try:
        free = await hold(database)
        database.put(make("own"), ignore)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, free.set)  # after `submit` has put its transaction
            assert await database.submit(twice, reads_only=True, snapshot=True) == [[(1,)], [(1,)]]
        assert await database.run(single, COUNT) == [(2,)]
    finally:
        await database.aclose()


async def test_tasks_of_several_event_loops_wait(database: ThreadedDatabase) -> None:
    """Event loops of asyncio and of trio run at once, and each task gets its own result."""

    async def work(start: str) -> list[str]:
        return [await database.run(add, f"{start}{number}") for number in range(20)]

    async with anyio.create_task_group() as group:
        for backend in ("asyncio", "trio", "asyncio"):
            group.start_soon(
                anyio.to_thread.run_sync, lambda backend=backend: anyio.run(work, backend, backend=backend)
            )
        assert await work("own") == [f"own{number}" for number in range(20)]
    assert len(await names(database)) == 60


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_whose_event_loop_is_gone(database: ThreadedDatabase) -> None:
    """Its transaction is done, and nobody waits for the result."""
    free = await hold(database)

    async def leave() -> None:
        task = asyncio.ensure_future(database.run(add, "a"))
        await asyncio.sleep(0)
        task.cancel()

    await asyncio.to_thread(asyncio.run, leave())
    free.set()
    assert await names(database) == ["a"]


@pytest.mark.parametrize("moment", ["begin", "execute", "commit", "answer"])
async def test_a_lost_connection_is_replaced(database: ThreadedDatabase, server: Server, moment: str) -> None:
    """The transaction is run again as a whole. If only the answer of its commit was lost, it must change nothing then."""
    server.losses = [moment]
    assert await database.run(add, "a") == "a"
    before = {"begin": [], "answer": ["begin", "commit"]}.get(moment, ["begin"])
    assert server.log == [*before, "reconnect", "begin", "commit"]
    assert await names(database) == ["a"]


async def test_a_neighbour_that_fails_only_once(database: ThreadedDatabase, server: Server) -> None:
    """A transaction that was committed in the end has no error of an earlier attempt."""
    failures, results = [LookupError("1"), LookupError("2")], list[Any]()

    def fail_twice() -> Transaction[str]:
        yield "INSERT INTO item VALUES ('a')", ()
        if failures:
            raise failures.pop()
        return "done"

    def lose() -> Transaction[str]:
        if len(failures) == 0 and "reconnect" not in server.log:
            server.losses = ["execute"]
        yield from add("b")
        return "b"

    free = await hold(database)
    for each in (fail_twice, lose):
        database.put(each, lambda job: results.append(job.error or job.value))
    free.set()
    assert await names(database) == ["a", "b"]
    assert results == ["done", "b"]


async def test_a_server_that_restarts(database: ThreadedDatabase, server: Server) -> None:
    """Transactions wait for it."""
    server.is_down, server.losses = True, ["execute"]
    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(database.run, add, name)
        await anyio.sleep(0.3)
        assert server.log.count("reconnect") == 0
        server.is_down = False
    assert sorted(await names(database)) == ["a", "b", "c"]


async def test_a_server_that_stays_away(server: Server) -> None:
    """A StoreError once the time is over; the next transaction tries it again."""
    database = ThreadedDatabase("the list", lambda: server, retry_seconds=0.3)
    await database.open()
    server.is_down, server.losses = True, ["begin"]
    with pytest.raises(StoreError, match="the connection is lost"):
        await database.run(add, "a")
    server.is_down = False
    await database.run(add, "b")
    assert await names(database) == ["b"]
    await database.aclose()


async def test_a_database_that_cannot_be_opened() -> None:
    """The error is raised by `open`, and it can be opened later."""
    errors = [ConfigurationError("no")]

    def connect() -> Server:
        if errors:
            raise errors.pop()
        return Server()

    database = ThreadedDatabase("the list", connect)
    with pytest.raises(ConfigurationError, match="no"):
        await database.open()
    assert not database.is_open
    await database.open()
    assert await database.run(single, COUNT) == [(0,)]
    await database.aclose()


async def test_a_database_in_memory(server: Server) -> None:
    """A transaction is done when `put` returns, whole or not at all."""
    database, results = MemoryDatabase(server), list[Any]()
    database.put(make("a"), lambda job: results.append(job.value), within=math.inf)
    database.put(lambda: fail_after_insert("x"), lambda job: results.append(type(job.error)))
    assert results == ["a", LookupError]
    with pytest.raises(LookupError):
        await database.run(fail_after_insert, "y")
    assert await names(database) == ["a"]


async def test_a_transaction_gets_the_rows_of_each_statement(server: Server) -> None:
    """It ends with its value, and is closed if a statement fails."""
    closed: list[str] = []

    def transaction(last: str) -> Transaction[Any]:
        try:
            rows = yield "SELECT ?", (1,)
            rows += yield last, ()
            return rows
        finally:
            closed.append(last)

    database = MemoryDatabase(server)
    assert await database.run(transaction, COUNT) == [(1,), (0,)]
    with pytest.raises(StoreError, match="no such table: missing"):
        await database.run(transaction, "SELECT * FROM missing")
    assert closed == [COUNT, "SELECT * FROM missing"]


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[SQLiteFile]:
    made = SQLiteFile(tmp_path / "list.db", SCHEMA)
    await made.open()
    yield made
    await made.aclose()


def count() -> Transaction[int]:
    """Count the items."""
    return (yield COUNT, ())[0][0]


async def test_a_long_query_runs_beside_a_transaction(file: SQLiteFile) -> None:
    """It waits for no other transaction, and reads the last commit."""
    await file.run(add, "a")
    free = await hold(file)
    file.put(make("b"), ignore)
    assert await file.read(count) == 1
    free.set()
    await file.run(add, "c")
    assert await file.read(count) == 3


async def test_a_long_query_cannot_write(file: SQLiteFile) -> None:
    """The connection refuses it, and stays usable."""
    with pytest.raises(StoreError, match="readonly"):
        await file.read(make("a"))
    assert await file.read(count) == 0


async def test_first_long_queries_at_once(file: SQLiteFile) -> None:
    """One connection is kept, and the file is as tidy afterwards as without them."""
    counts = list[int]()

    async def read() -> None:
        counts.append(await file.read(count))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(read)
    await file.aclose()
    assert counts == [0] * 5
    assert [each.name for each in Path(file.path).parent.iterdir()] == ["list.db"]
    await file.open()
    assert await file.read(count) == 0


async def test_a_long_query_of_a_closed_database(file: SQLiteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, also if the database was closed while its connection was opened."""
    opening, free, refused = threading.Event(), threading.Event(), list[str]()

    def wait(_: sqlite3.Connection, statement: str) -> None:
        if statement == "PRAGMA query_only = ON":
            opening.set()
            free.wait(60)

    async def read() -> None:
        with pytest.raises(ConfigurationError, match="is not open in this process") as caught:
            await file.read(count)
        refused.append(str(caught.value))

    before_statements(monkeypatch, wait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.to_thread.run_sync(opening.wait)
        await file.aclose()
        free.set()
    await read()
    assert len(refused) == 2


async def test_a_long_query_after_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the file that was opened, and makes no other one; a file that was removed meanwhile is an error."""
    monkeypatch.chdir(tmp_path)
    file = SQLiteFile("list ?%.db", SCHEMA)
    await file.open()
    await file.run(add, "a")
    monkeypatch.chdir("/")
    assert await file.read(count) == 1
    await file.aclose()
    monkeypatch.chdir(tmp_path)
    await file.open()
    (tmp_path / "list ?%.db").unlink()
    with pytest.raises(StoreError, match="cannot be read"):
        await file.read(count)
    await file.aclose()
    assert not (tmp_path / "list ?%.db").exists()


def test_a_database_in_memory_is_closed_with_its_last_user() -> None:
    """Python 3.13 warns about a connection that is collected and not closed."""
    connection = in_memory(SCHEMA)
    database = MemoryDatabase(connection)
    del database
    gc.collect()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


async def test_a_long_query_in_memory_lets_other_tasks_run() -> None:
    """They run after each of its statements. An error of the query is a StoreError."""
    database = MemoryDatabase(in_memory(SCHEMA))
    counts = list[int]()

    def repeated() -> Transaction[None]:
        while len(counts) < 1000 and counts[-1:] != [1]:
            counts.append((yield COUNT, ())[0][0])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(database.read, repeated)
        while not counts:
            await anyio.lowlevel.checkpoint()
        await database.run(add, "a")
    assert (counts[0], counts[-1]) == (0, 1)
    with pytest.raises(StoreError, match="no such table"):
        await database.read(lambda: single("SELECT * FROM absent"))


def test_python_does_not_compare_a_capital_letter_of_an_insert() -> None:
    """Its comparison depends on the locale."""
    statements: list[str] = []
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE item (name TEXT)")
    connection.set_trace_callback(statements.append)
    SQLiteConnection(connection, "a list").execute("INSERT INTO item VALUES ('INSERT ')")
    assert statements == ["insert INTO item VALUES ('INSERT ')"]
    connection.close()

"""Formats of databases: this version reads and continues the databases of each released format."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import psycopg
import pytest

from aswarm import AsyncSwarm, ConfigurationError, StoreError
from aswarm._log.conversations import SCHEMA as STORE
from aswarm._run.options import RunOptions
from aswarm._sql.databases import PostgresServer, SQLiteFile
from aswarm._sql.transactions import Schema, Transaction, single
from aswarm.batch._journal import Journal
from aswarm.conversations import PostgresStore, SQLiteStore
from aswarm.runs import LocalRuns, Run
from aswarm.testing import ScriptedModel
from aswarm.types import UnknownCall
from tests.support.conversations.stores import empty_schema
from tests.support.record.journaled import Script, says
from tests.support.sql.example_databases import (
    BATCH,
    SCHEMAS,
    agents,
    columns_in_postgres,
    columns_in_sqlite,
    examples,
    in_postgres,
    in_sqlite,
)

pytestmark = pytest.mark.asyncio

STORES = sorted(examples("store"))
JOURNALS = sorted(examples("journal"))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """The path of a file, or the connection string of an empty schema."""
    return tmp_path / "data" if request.param == "sqlite" else empty_schema(request.getfixturevalue("postgres"))


# --- examples of the released formats ---


@pytest.mark.parametrize("kind", SCHEMAS)
async def test_todays_format_has_an_example_with_its_tables(kind: str) -> None:
    """A change of the tables needs the next format, a migration, and an example: see `example_databases`."""
    example = examples(kind)[SCHEMAS[kind].format]
    assert example["tables"] == list(SCHEMAS[kind].tables)
    assert example["application"] == SCHEMAS[kind].application


@pytest.mark.parametrize("number", STORES)
async def test_a_migrated_store_has_the_tables_of_a_new_store(number: int, place: Path | str, postgres: str) -> None:
    """The columns, the indexes and the format are the same."""
    async with made(number, place):
        pass
    if isinstance(place, Path):
        new = place.with_name("new")
        async with SQLiteStore(new):
            pass
        assert columns_in_sqlite(place) == columns_in_sqlite(new)
    else:
        other = empty_schema(postgres)
        async with PostgresStore(other):
            pass
        assert columns_in_postgres(place) == columns_in_postgres(other)


@pytest.mark.parametrize("number", STORES)
async def test_the_conversations_of_a_store_of_each_format_are_read(number: int, place: Path | str) -> None:
    """Messages, the agent after a handoff, the context variables, and a call that waits."""
    async with made(number, place) as store:
        ended, waits = await store.load("ann/ended"), await store.load("ann/waits")
        found = {each.id for each in await store.list(prefix="ann/")}
    assert ended is not None
    assert waits is not None
    assert found == {"ann/ended", "ann/waits", "ann/died"}
    roles = [message["role"] for message in ended.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert ended.messages[2]["content"] == "found 7 ✓"
    assert (ended.agent, ended.context_variables, ended.stop) == ("Clerk", {"seen": 7}, "answer")
    assert waits.messages[-1]["waiting"][0]["reason"] == "needs approval"


@pytest.mark.parametrize("number", STORES)
async def test_the_runs_of_a_store_of_each_format_go_on(number: int, place: Path | str) -> None:
    """The run of a dead process continues without its finished calls, and a waiting run takes its answer."""
    notes: list[str] = []
    model = ScriptedModel(["It is 8.", "It is erased."])
    async with (
        made(number, place) as store,
        AsyncSwarm(model.client(), model="gpt-6") as swarm,
        LocalRuns(swarm, store=store, agents=agents(notes), version="1") as runs,
    ):
        died = Run(runs, await runs.get("run-died", user="ann"))
        assert (await died.last_entry()).type == "RunFinished"
        assert notes == ["slow"]
        waits = Run(runs, await runs.get("run-waits", user="ann"))
        answered = await waits.answer({"call_3": True})
        assert (await answered.last_entry()).type == "RunFinished"
        ended = Run(runs, await runs.get("run-ended", user="ann"))
        kinds = [entry.type async for entry in ended.entries()]
        stored = await store.load("ann/died")
    assert notes == ["slow", "erase a file"]
    assert kinds[-1] == "RunFinished"
    assert stored is not None
    assert stored.messages[-1]["content"] == "It is 8."


@pytest.mark.parametrize("number", STORES)
async def test_a_waiting_run_of_each_format_can_be_cancelled(number: int, tmp_path: Path) -> None:
    """Its log may have no entry for the end of its turn. The log and the conversation have the same answer."""
    async with (
        made(number, tmp_path / "data") as store,
        AsyncSwarm(ScriptedModel([]).client()) as swarm,
        LocalRuns(swarm, store=store, agents=agents([]), version="1") as runs,
    ):
        waits = Run(runs, await runs.get("run-waits", user="ann"))
        assert (await waits.cancel()).state == "stopped (cancelled)"
        response, stored = await waits.result(), await store.load("ann/waits")
    assert stored is not None
    assert stored.messages[1:] == response.messages
    assert stored.messages[-1]["content"] == "not run: interrupted"


@pytest.mark.parametrize("number", JOURNALS)
async def test_a_journal_of_each_format_goes_on(number: int, tmp_path: Path) -> None:
    """A finished item returns its response; an item whose process died continues after its recorded call."""
    in_sqlite(examples("journal")[number], tmp_path / "journal")
    notes: list[str] = []
    script = Script(says("It is 8."))
    boss, swarm = agents(notes)[0], AsyncSwarm(client=script)
    async with Journal(tmp_path / "journal", BATCH) as journal:
        first = await journal.run("a", RunOptions(boss, "Hi"), swarm._run_to_end)
        assert script.asked == []
        second = await journal.run("b", RunOptions(boss, "Hi again"), swarm._run_to_end)
    assert first.text == "It is 7."
    assert second.text == "It is 8."
    assert notes == []
    assert second.context_variables == {"seen": 8}


async def test_fields_and_entries_that_only_a_newer_version_knows_are_ignored(tmp_path: Path) -> None:
    """During a rolling upgrade, an older process continues and answers the runs of a newer process."""
    in_sqlite(_of_a_newer_version(examples("store")[STORE.format]), tmp_path / "data")
    notes: list[str] = []
    async with (
        SQLiteStore(tmp_path / "data") as store,
        AsyncSwarm(ScriptedModel(["It is 8.", "It is erased."]).client(), model="gpt-6") as swarm,
        LocalRuns(swarm, store=store, agents=agents(notes), version="1") as runs,
    ):
        died = Run(runs, await runs.get("run-died", user="ann"))
        end = await died.last_entry()
        waits = Run(runs, await runs.get("run-waits", user="ann"))
        answered = await waits.answer({"call_3": True})
        assert (await answered.last_entry()).type == "RunFinished"
        ended = await store.load("ann/ended")
    assert (end.type, end.response["text"], notes) == ("RunFinished", "It is 8.", ["slow", "erase a file"])
    assert ended is not None
    assert ended.unknown_calls == [UnknownCall("call_1", "look", "{}", "Clerk")]


def _of_a_newer_version(example: dict[str, Any]) -> dict[str, Any]:
    """Return the example as a newer version may write it: with more fields, and with an entry of another type."""
    rows = {table: [dict(row) for row in of_table] for table, of_table in example["rows"].items()}
    for row in rows["aswarm_entry"]:
        lines = [{**json.loads(line), "later": {"a": 1}, "_later": 2} for line in row["data"].split("\n")]
        for line in lines:
            for items in (line.get("calls", ()), line.get("response", {}).get("waiting", ())):
                for item in items:
                    item["later"] = 3
        row["data"] = "\n".join(map(json.dumps, lines))
    later = json.dumps({"seq": 19, "at": 1795499377872, "type": "Later", "index": 1})
    rows["aswarm_entry"].append({"run": "run-died", "first": 19, "last": 19, "data": later})
    unknown = {"id": "call_1", "name": "look", "arguments": "{}", "agent": "Clerk", "later": 4}
    rows["aswarm_conversation"][0]["unknown_calls"] = json.dumps([unknown])
    return {**example, "rows": rows}


def made(number: int, place: Path | str) -> SQLiteStore | PostgresStore:
    """Return the store of the example of this format."""
    if isinstance(place, Path):
        in_sqlite(examples("store")[number], place)
        return SQLiteStore(place)
    in_postgres(examples("store")[number], place)
    return PostgresStore(place)


# --- migrations ---

FIRST = Schema(0x61737700, 1, "a list", ("CREATE TABLE item (name {text} PRIMARY KEY)",))


def add_length() -> Transaction[None]:
    yield "ALTER TABLE item ADD COLUMN length {big}", ()


def fill_length() -> Transaction[None]:
    for (name,) in (yield "SELECT name FROM item", ()):
        yield "UPDATE item SET length = ? WHERE name = ?", (len(name), name)


def fail() -> Transaction[None]:
    yield "UPDATE item SET length = 0", ()
    raise ConfigurationError("the migration failed")


def later(number: int, **migrations: Callable[[], Transaction[None]]) -> Schema:
    steps = {int(name.removeprefix("from_")): migration for name, migration in migrations.items()}
    return Schema(FIRST.application, number, FIRST.kind, ("CREATE TABLE item (name {text}, length {big})",), steps)


LATEST = later(3, from_1=add_length, from_2=fill_length)


def database(place: Path | str, schema: Schema) -> SQLiteFile | PostgresServer:
    return SQLiteFile(place, schema) if isinstance(place, Path) else PostgresServer(place, schema)


async def answers(place: Path | str, schema: Schema, statement: str, *parameters: object) -> Any:
    """Open the database, run one statement, and close it."""
    opened = database(place, schema)
    await opened.open()
    try:
        rows = await opened.run(single, statement, *parameters)
        return [tuple(row) for row in rows]
    finally:
        await opened.aclose()


NEWER = r"newer version of aswarm \(its format is 3, this version reads 1\); upgrade aswarm"
LENGTHS = "SELECT name, length FROM item"
INSERT = "INSERT INTO item VALUES ('four')"


async def test_opening_a_database_of_an_older_format_migrates_it_in_order(place: Path | str) -> None:
    """Each migration sees the tables of the migration before it; the next opening migrates nothing."""
    await answers(place, FIRST, INSERT)
    for _ in range(2):
        assert await answers(place, LATEST, LENGTHS) == [("four", 4)]


async def test_after_a_migration_an_older_version_refuses_the_database_and_names_the_remedy(place: Path | str) -> None:
    """It does not write rows that the newer version cannot read."""
    await answers(place, FIRST, INSERT)
    await answers(place, LATEST, "SELECT 1")
    with pytest.raises(ConfigurationError, match=NEWER):
        await answers(place, FIRST, "SELECT 1")


@pytest.mark.slow
async def test_a_database_that_a_process_has_open_is_not_migrated(place: Path | str) -> None:
    """The open process would write rows of the old format, because it checks the format only when it opens the database."""
    older = database(place, FIRST)
    await older.open()
    in_use = (
        "cannot be migrated to the format 3 while another process has it open; stop all processes of the older version"
    )
    with pytest.raises(ConfigurationError, match=in_use):
        await answers(place, LATEST, "SELECT 1")
    await older.run(single, INSERT)
    await older.aclose()
    assert await answers(place, LATEST, LENGTHS) == [("four", 4)]


async def test_processes_of_the_newer_version_may_start_at_once(place: Path | str) -> None:
    """One of them migrates the database, and the others wait."""
    await answers(place, FIRST, INSERT)
    opened = [database(place, LATEST) for _ in range(4)]
    async with anyio.create_task_group() as group:
        for each in opened:
            group.start_soon(each.open)
    for each in opened:
        assert [tuple(row) for row in await each.run(single, LENGTHS)] == [("four", 4)]
        await each.aclose()


async def test_a_process_that_waits_to_migrate_a_file_does_not_block_another_one(tmp_path: Path) -> None:
    """It closes its connection between two attempts. Otherwise each would hold a read lock, and both would wait forever."""
    path = tmp_path / "data"
    await answers(path, FIRST, INSERT)
    opened, waits = database(path, LATEST), threading.Event()
    other = sqlite3.connect(path, timeout=2, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.set_trace_callback(lambda _: waits.set())
    with closing(sqlite3.connect(path)) as reader, closing(other):
        reader.execute("SELECT count(*) FROM item").fetchone()  # so that both wait
        async with anyio.create_task_group() as group:
            group.start_soon(opened.open)
            await asyncio.sleep(0.2)
            group.start_soon(anyio.to_thread.run_sync, other.execute, "BEGIN EXCLUSIVE")
            await anyio.to_thread.run_sync(waits.wait)
            await asyncio.sleep(0.1)
            reader.close()
            while not other.in_transaction:
                await asyncio.sleep(0.01)
            other.close()
    assert [tuple(row) for row in await opened.run(single, LENGTHS)] == [("four", 4)]
    await opened.aclose()


async def test_a_process_that_reconnects_after_a_migration_gets_an_error_with_the_remedy(postgres: str) -> None:
    """The server closes its connection, a newer version migrates the tables, and then the process continues."""
    place = empty_schema(postgres)
    older = PostgresServer(place, FIRST)
    await older.open()
    ((backend,),) = await older.run(single, "SELECT pg_backend_pid()")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", (backend,))
    await answers(place, LATEST, "SELECT 1")
    for _ in range(2):
        with pytest.raises(StoreError, match=NEWER):
            await older.run(single, "SELECT name FROM item")
    await older.aclose()


async def test_a_format_without_a_migration_is_refused_and_not_changed(place: Path | str) -> None:
    """The formats before the first release have none."""
    await answers(place, FIRST, INSERT)
    with pytest.raises(ConfigurationError, match=r"its format is 1, this version reads 3, and has no migration from 2"):
        await answers(place, later(3, from_1=add_length), "SELECT 1")
    assert await answers(place, FIRST, "SELECT * FROM item") == [("four",)]


async def test_a_failing_migration_changes_nothing(place: Path | str) -> None:
    """All migrations are one transaction with the new number of the format."""
    await answers(place, FIRST, INSERT)
    with pytest.raises(ConfigurationError, match="the migration failed"):
        await answers(place, later(3, from_1=add_length, from_2=fail), "SELECT 1")
    assert await answers(place, FIRST, "SELECT * FROM item") == [("four",)]


@pytest.mark.slow
async def test_a_migration_waits_for_a_writer(tmp_path: Path) -> None:
    """Another process may have the file open; the file is refused if it stays locked."""
    await answers(tmp_path / "data", FIRST, INSERT)
    with closing(sqlite3.connect(tmp_path / "data", isolation_level=None)) as other:
        opened = SQLiteFile(tmp_path / "data", LATEST, exclusive=True)  # it waits for a second
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConfigurationError, match="database is locked"):
            await opened.open()
        other.execute("ROLLBACK")
    assert await answers(tmp_path / "data", LATEST, LENGTHS) == [("four", 4)]

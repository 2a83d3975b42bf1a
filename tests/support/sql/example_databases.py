"""Databases of released formats, each in a file of JSON with its tables and rows, for SQLite and for PostgreSQL.

`python -m tests.support.sql.example_databases` writes the examples of today's formats to tests/sql/formats. Write an example once,
before the release of its format, and never change it: it stands for the files of users.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm, tool
from aswarm._log.conversations import SCHEMA as STORE
from aswarm._log.items import SCHEMA as JOURNAL
from aswarm._sql import postgres, sqlite
from aswarm._sql.transactions import Schema
from aswarm.conversations import SQLiteStore
from aswarm.runs import LocalRuns, NewRun
from aswarm.testing import ScriptedModel, call

FOLDER = Path(__file__).parents[2] / "sql/formats"
SCHEMAS = {"store": STORE, "journal": JOURNAL}
ROWS = {
    "store": ("aswarm_conversation", "aswarm_message", "aswarm_run", "aswarm_entry"),
    "journal": ("aswarm_batch", "aswarm_run", "aswarm_entry"),
}
BATCH = {"agent": "Boss", "model": "gpt-6"}
Example = dict[str, Any]
Query = Callable[..., Sequence[Sequence[Any]]]


def examples(kind: str) -> dict[int, Example]:
    """Return the examples of a kind by their format."""
    read = [json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob(f"{kind}-*.json")]
    return {example["format"]: example for example in sorted(read, key=lambda example: example["format"])}


def in_sqlite(example: Example, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in example["tables"]:
            connection.execute(statement.format(**sqlite._TYPES))
        _insert(example, connection.execute, "?")
        connection.execute(f"PRAGMA application_id = {example['application']}")
        connection.execute(f"PRAGMA user_version = {example['format']}")


def in_postgres(example: Example, conninfo: str) -> None:
    """Make the tables with the example in an empty schema."""
    table = f"aswarm_format_{example['application']:x}"
    with closing(postgres.connected(conninfo)) as connection:
        connection.execute(f"CREATE TABLE {table} (version INTEGER NOT NULL)".encode())
        connection.execute(f"INSERT INTO {table} VALUES ({example['format']})".encode())
        for statement in example["tables"]:
            connection.execute(statement.format(**postgres._TYPES).encode())
        _insert(example, lambda statement, row: connection.execute(statement.encode(), row), "%s")


def _insert(example: Example, execute: Callable[[str, Sequence[Any]], object], mark: str) -> None:
    for table, rows in example["rows"].items():
        for row in rows:
            names = ", ".join(f'"{name}"' for name in row)
            # The numbers of rows come from the file too, and not from PostgreSQL.
            overriding = "OVERRIDING SYSTEM VALUE " if mark == "%s" and "number" in row else ""
            values = [
                value.encode() if name == "data" and table == "aswarm_entry" else value for name, value in row.items()
            ]
            execute(f"INSERT INTO {table} ({names}) {overriding}VALUES ({', '.join([mark] * len(row))})", values)


def columns_in_sqlite(path: Path) -> dict[str, Any]:
    """Return the columns of each table, and the indexes of a file."""
    with closing(sqlite3.connect(path)) as connection:
        made = connection.execute(
            "SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name"
        ).fetchall()
        return {
            name: sorted(row[1:] for row in connection.execute(f"PRAGMA table_info({name})"))
            if kind == "table"
            else " ".join(statement.split())
            for name, kind, statement in made
        }


def columns_in_postgres(conninfo: str) -> dict[str, Any]:
    """Return the same of the schema of a server."""
    with closing(postgres.connected(conninfo)) as connection:
        (schema,) = connection.execute("SELECT current_schema()").fetchone() or ("",)
        columns = connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable, column_default, collation_name, is_identity "
            "FROM information_schema.columns WHERE table_schema = %s ORDER BY table_name, column_name",
            (schema,),
        ).fetchall()
        indexes = connection.execute(
            "SELECT indexname, replace(indexdef, schemaname || '.', '') FROM pg_indexes WHERE schemaname = %s ORDER BY indexname",
            (schema,),
        ).fetchall()
    return {"columns": columns, "indexes": indexes}


def agents(notes: list[str], go: anyio.Event | None = None, began: anyio.Event | None = None) -> list[Agent]:
    """Return the agents of the examples. `notes` gets the calls; `slow` waits for `go`."""

    async def look(number: int, context_variables: dict[str, Any]) -> str:
        notes.append(f"look {number}")
        context_variables["seen"] = number
        return f"found {number} ✓"

    async def slow() -> str:
        notes.append("slow")
        if go is not None and began is not None:
            began.set()
            await go.wait()
        return "done"

    @tool(approve=True)
    async def erase(name: str) -> str:
        notes.append(f"erase {name}")
        return f"erased {name}"

    clerk = Agent(name="Clerk", functions=[look, tool(repeatable=True)(slow)])
    return [Agent(name="Boss", functions=[look, erase, clerk]), clerk]


# --- making them ---


async def make_store(path: Path) -> None:
    """Make a store: a conversation after a handoff, a run that waits for an approval, and a run whose process died."""
    go, began = anyio.Event(), anyio.Event()
    steps = [
        call("look", number=7), call("transfer_to_clerk"), "It is 7.",
        call("erase", name="a file"),
        call("transfer_to_clerk"), [call("look", number=8), call("slow")], "Too late.",
    ]  # fmt: skip
    live = path.with_name("live.sqlite")
    async with (
        SQLiteStore(live) as store,
        AsyncSwarm(ScriptedModel(steps).client(), model="gpt-6") as swarm,
        LocalRuns(swarm, store=store, agents=agents([], go, began), version="1") as runs,
    ):
        for name in ("ended", "waits"):
            await (await runs.start(_new(name))).last_entry()
        await runs.start(_new("died"))
        await began.wait()
        with closing(sqlite3.connect(live)) as source, closing(sqlite3.connect(path)) as copy:
            source.backup(copy)
        go.set()


def _new(name: str) -> NewRun:
    return NewRun("ann", name, [{"role": "user", "content": f"Hi from {name}!"}], run_id=f"run-{name}")


async def make_journal(path: Path) -> None:
    """Make the journal of a batch: a finished item, and an item whose process died after a call."""
    from aswarm._run.options import RunOptions
    from aswarm.batch._journal import Journal
    from tests.support.record.journaled import Died, Script, calls, dies, says

    script = Script(calls("look", look='{"number": 7}'), says("It is 7."), calls("look", look='{"number": 8}'), dies())
    swarm, boss = AsyncSwarm(client=script), agents([])[0]
    async with Journal(path, BATCH) as journal:
        await journal.run("a", RunOptions(boss, "Hi"), swarm._run_to_end)
        try:
            await journal.run("b", RunOptions(boss, "Hi again"), swarm._run_to_end)
        except Died:
            return


def example_of(kind: str, path: Path) -> Example:
    """Read a database of today's format into an example."""
    schema: Schema = SCHEMAS[kind]
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = {table: [_row(row) for row in connection.execute(f"SELECT * FROM {table}")] for table in ROWS[kind]}
    return {"application": schema.application, "format": schema.format, "tables": schema.tables, "rows": rows}


def _row(row: sqlite3.Row) -> Mapping[str, Any]:
    return {key: value.decode() if isinstance(value, bytes) else value for key, value in dict(row).items()}


def main() -> None:
    """Write the examples of today's formats. An example that exists stays."""
    with tempfile.TemporaryDirectory() as folder:
        for kind, make in (("store", make_store), ("journal", make_journal)):
            target = FOLDER / f"{kind}-{SCHEMAS[kind].format}.json"
            if not target.exists():
                anyio.run(make, Path(folder, kind))
                example = example_of(kind, Path(folder, kind))
                target.write_text(json.dumps(example, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
                print(f"wrote {target}")


if __name__ == "__main__":
    main()

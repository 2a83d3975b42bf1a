"""The tables that a durable run writes, and the number of copies of its answer in them.

The database is read before and after the run. A copy is a place with the whole answer, in any column; text deltas in a log do not
count.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from typing import Any

import common
import psycopg

_ANSWER = "The answer of this run is xylophone-4711, and it stands nowhere else."
_DELTA = re.compile(r'[^\n]*"TextDelta"[^\n]*')
Rows = dict[str, list[Any]]


def dump(url: str) -> Rows:
    """Return all rows of all tables."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return {name: connection.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}  # noqa: S608
    with psycopg.connect(url) as connection:
        names = connection.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "
            "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        return {name: connection.execute(f"SELECT * FROM {name}".encode()).fetchall() for (name,) in names}  # noqa: S608


def _text(cell: object) -> str:
    return bytes(cell).decode(errors="replace") if isinstance(cell, bytes | memoryview) else str(cell)


def copies(rows: list[Any]) -> int:
    """Return the number of copies of the answer in these rows."""
    return sum(_DELTA.sub("", _text(cell)).count(_ANSWER) for row in rows for cell in row)


async def changes(url: str) -> dict[str, int]:
    """Return the copies in each table after a run of four completions and three calls."""
    async with common.durable(url, common.Model(answer=_ANSWER)) as runs:
        await (await runs.start("guide", common.QUESTION)).result()
        await asyncio.sleep(0.5)  # DBOS writes the end of a workflow after its result
        before = dump(url)
        await (await runs.start("guide", common.QUESTION)).result()
        await asyncio.sleep(0.5)
        after = dump(url)
    old = {name: set(map(repr, rows)) for name, rows in before.items()}
    new = {name: [row for row in rows if repr(row) not in old.get(name, ())] for name, rows in after.items()}
    return {name: copies(rows) for name, rows in new.items() if rows}


def measure(_: Any) -> None:
    """Print two lines for each store."""
    with common.databases() as made:
        for store in common.STORES:
            found = common.child("copies:changes", made.empty(store))
            of_dbos = [name for name in found if not name.rpartition(".")[2].startswith("aswarm")]
            names = ", ".join(f"{name} {number}" if number else name for name, number in sorted(found.items()))
            common.line(f"tables written, {store}: {len(of_dbos)} of DBOS ({names})", [len(found)])
            common.line(f"copies of the answer, {store}", [sum(found.values())])

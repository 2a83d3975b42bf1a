"""The writer of a log: order, one row for what is unwritten, writes that fail or are refused, the disk."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm._log import runs as log
from aswarm._log.conversations import SCHEMA
from aswarm._log.runs import LogRow
from aswarm._log.writer import LogWriter
from aswarm._sql.databases import SQLiteFile
from aswarm._sql.sqlite import SQLiteConnection
from aswarm._sql.transactions import PendingTransaction, single
from aswarm._values.errors import StoreError

pytestmark = pytest.mark.asyncio
INSERT = """INSERT INTO aswarm_run (id, digest, "user", status, started, on_disconnect, version, attempt, deaths)
    VALUES (?, '', '', 'running', 0, 'finish', '', 1, 0)"""
FULL = "CREATE TRIGGER full BEFORE INSERT ON aswarm_entry BEGIN SELECT RAISE(ABORT, 'disk full'); END"


class Log:
    """Two runs in a file, each with a writer. `failed`: what the writers have reported."""

    def __init__(self, file: SQLiteFile) -> None:
        self.file = file
        self.failed: list[Any] = []
        self.writers = [LogWriter(file, run, 1, 0, self.failed.append) for run in "ab"]

    async def rows(self, run: str = "a") -> list[LogRow]:
        return await self.file.run(log.entries, run)

    async def idle(self, run: str = "a", rows: int = 1) -> None:
        """Wait until a run has this number of rows."""
        with anyio.fail_after(20):
            while len(await self.rows(run)) < rows:
                await anyio.sleep(0.005)


@asynccontextmanager
async def opened(path: Path) -> AsyncGenerator[Log]:
    file = SQLiteFile(path, SCHEMA)
    await file.open()
    it = Log(file)
    for run in "ab":
        await file.run(single, INSERT, run)
    try:
        yield it
    finally:
        await file.aclose()


async def test_entries_are_written_in_order_and_once(path: Path) -> None:
    """A commit writes the entries before it, and later entries follow in rows of their own."""
    async with opened(path) as it:
        writer = it.writers[0]
        writer.add(b"0")
        writer.add(b"1")
        assert await writer.commit()
        writer.add(b"2")
        await it.idle(rows=2)
        assert await writer.commit()
        assert await it.rows() == [LogRow(0, 1, b"0\n1"), LogRow(2, 2, b"2")]


async def test_a_commit_after_an_unawaited_write_waits_for_the_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a change makes a commit of SQLite wait for the disk, so the last row is written again, but only once."""
    begun: list[bool] = []
    begin = SQLiteConnection.begin

    def note(self: SQLiteConnection, *, reads_only: bool, durable: bool) -> None:
        begun.append(durable)
        begin(self, reads_only=reads_only, durable=durable)

    monkeypatch.setattr(SQLiteConnection, "begin", note)
    async with opened(path) as it:
        writer = it.writers[0]
        writer.add(b"0")
        await it.idle()
        begun.clear()
        assert await writer.commit()
        assert await writer.commit()
        assert begun == [True]
        assert await it.rows() == [LogRow(0, 0, b"0")]


async def test_a_failed_write_is_repeated_with_the_next_entries(path: Path) -> None:
    """The error is reported; nothing is lost, and nothing changes its place."""
    async with opened(path) as it:
        writer = it.writers[0]
        await it.file.run(single, FULL)
        writer.add(b"0")
        with pytest.raises(StoreError, match="disk full"):
            await writer.commit()
        writer.schedule()
        writer.add(b"1")
        with anyio.fail_after(20):
            while len(it.failed) < 2:
                await anyio.sleep(0.005)
        await it.file.run(single, "DROP TRIGGER full")
        assert await writer.commit()
        assert await it.rows() == [LogRow(0, 1, b"0\n1")]


async def test_a_refused_write_does_not_fail_its_neighbours(path: Path) -> None:
    """After a takeover, the entries of the earlier attempt are refused; the other run in the same commit goes on."""
    async with opened(path) as it:
        first, second = it.writers
        await it.file.run(log.take, "a", "other", "1")
        first.add(b"late")
        second.add(b"0")
        async with anyio.create_task_group() as group:
            group.start_soon(second.commit)
            assert not await first.commit()
        assert (await it.rows(), await it.rows("b")) == ([], [LogRow(0, 0, b"0")])
        assert it.failed[-1] is None


@pytest.mark.parametrize("is_closed", [False, True])
async def test_entries_that_were_added_during_a_write_are_written_next(path: Path, is_closed: bool) -> None:
    """While the database is closed, nothing can be scheduled, and its thread ends as always."""
    async with opened(path) as it:
        writer = it.writers[0]
        closing: list[Any] = []

        def add_more(job: PendingTransaction) -> None:  # as the event loop does while the thread writes
            if not closing:
                closing.append(writer._unwritten.append(b"1"))
            note(job)

        note, writer._note = writer._note, add_more  # type: ignore[method-assign]
        writer.add(b"0")
        if is_closed:
            await it.file.aclose()
            await it.file.open()
        else:
            await it.idle(rows=2)
        rows = await it.rows()
    assert [row.data for row in rows] == ([b"0"] if is_closed else [b"0", b"1"])

"""Many items in one journal, and processes that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from journaled import BATCH, Script, calls, noting, run, says

from aswarm import Agent
from aswarm._journal import Journal
from aswarm._journal.entry import JournalEntry
from aswarm._journal.record import CallKey
from aswarm._journal.sqlite import JournalFile, Step, StoredItem

KILLS = Path(__file__).with_name("journal_kills.py")


@pytest.mark.anyio
async def test_many_items_at_once(path: Path) -> None:
    """Items that run together share transactions, and each has its own record; a rerun returns all of them."""
    agent = Agent(functions=[noting([], "one")])

    async def work(journal: Journal, number: int) -> None:
        entry = await journal.begin(f"{number}", agent, f"Hi {number}")
        if entry.response is None:
            model = Script(calls("one"), says(f"Bye {number}"))
            await entry.finish(await run(entry, model, agent, f"Hi {number}"))
        texts.append(entry.response and entry.response.text)

    for _ in range(2):
        texts: list[str | None] = []
        async with Journal(path, BATCH) as journal, anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(work, journal, number)
        assert sorted(map(str, texts)) == sorted(f"Bye {number}" for number in range(200))


@pytest.mark.anyio
async def test_the_event_loop_does_not_wait_for_the_file(path: Path) -> None:
    """Other tasks run while a journal waits for another process's lock; a cancelled opening leaves it closed."""
    held = JournalFile.open(path, BATCH)
    steps = 0
    with anyio.move_on_after(0.1) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(Journal(path, BATCH).__aenter__)
            while True:
                await anyio.sleep(0.005)
                steps += 1
    assert scope.cancelled_caught and steps > 3
    held.close()
    async with Journal(path, BATCH) as journal:
        assert (await journal.begin("a", Agent(), "Hi")).response is None


def test_one_transaction_may_be_large(path: Path) -> None:
    """It has more rows than one statement takes, and the same id may be looked up twice in it."""
    file = JournalFile.open(path, BATCH)
    steps = [Step(1, "completion", turn, 0, "{}") for turn in range(400)]
    assert file.work([("a", "x"), ("a", "x"), ("b", "y")], steps, is_durable=True) == [
        StoredItem(1, "x"),
        StoredItem(1, "x", is_repeated=True),
        StoredItem(2, "y"),
    ]
    assert file.work([], [], is_durable=True) == []
    file.close()
    file = JournalFile.open(path, BATCH)
    (found,) = file.work([("a", "x")], [], is_durable=True)
    assert found.steps == steps
    file.work([], [Step(1, "finished", 0, 0, "{}")], is_durable=True)
    file.close()
    file = JournalFile.open(path, BATCH)
    assert [len(found.steps) for found in file.work([("a", "x"), ("b", "y")], [], is_durable=True)] == [1, 0]
    file.close()


def test_a_loop_that_is_gone(path: Path) -> None:
    """A loop that ends without closing the journal leaves no task waiting; all records are written."""

    async def leave() -> JournalEntry:
        journal = await Journal(path, BATCH).__aenter__()
        entry = await journal.begin("a", Agent(), "Hi")
        waiting = asyncio.ensure_future(entry.commit("started", CallKey(1, 0)))
        await asyncio.sleep(0)
        waiting.cancel()
        return entry

    entry = asyncio.run(leave())
    asyncio.run(entry.writer.aclose())
    assert path.exists()
    assert not path.with_name("run.sqlite-wal").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the rounds fork")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Killed again and again, every item ends exactly once, no recorded call runs twice, and none is lost.

    This is the short version; `nox -s kills` runs many rounds.
    """
    rounds = subprocess.run(
        [sys.executable, KILLS, "1", "20", "5"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert rounds.returncode == 0, rounds.stderr
    seen = json.loads(rounds.stdout)
    assert seen["kills"] > 0
    assert seen["done"] > 0

"""Many items in one journal, and processes that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from aswarm import Agent, AsyncSwarm
from aswarm._record.journal import Journal
from aswarm._run.options import RunOptions
from aswarm._runtime.files import SideLock
from tests.support.record.journaled import BATCH, Script, begin, calls, noting, says

KILLS = Path(__file__).with_name("journal_kills.py")


@pytest.mark.anyio
async def test_many_items_at_once(path: Path) -> None:
    """Items that run together share transactions, and each has its own record; a rerun returns all of them."""
    agent = Agent(functions=[noting([], "one")])

    async def work(journal: Journal, number: int) -> None:
        swarm = AsyncSwarm(client=Script(*([] if is_rerun else [calls("one"), says(f"Bye {number}")])))
        response = await journal.run(f"{number}", RunOptions(agent, f"Hi {number}"), swarm._run_to_end)
        texts.append(response.text)

    for is_rerun in (False, True):  # noqa: B007 - `work` reads it
        texts: list[str] = []
        async with Journal(path, BATCH) as journal, anyio.create_task_group() as group:
            for number in range(300):
                group.start_soon(work, journal, number)
        assert sorted(texts) == sorted(f"Bye {number}" for number in range(300))


@pytest.mark.anyio
async def test_the_event_loop_does_not_wait_for_the_file(path: Path) -> None:
    """Other tasks run while a journal waits for another process's lock; a cancelled opening leaves it closed."""
    held = SideLock.acquire(str(path), 0)
    assert held is not None
    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            group.start_soon(Journal(path, BATCH).__aenter__)
            for _ in range(20):
                await anyio.sleep(0.005)
            group.cancel_scope.cancel()
    held.release()
    async with Journal(path, BATCH) as journal:
        assert (await begin(journal, "a", Agent())).text == "Done"


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the rounds fork")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Killed again and again, every item ends exactly once, no recorded call runs twice, and none is lost.

    This is the short version; `nox -s deep -- kills` runs many rounds.
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

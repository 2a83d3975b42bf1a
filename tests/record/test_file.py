"""Many items in one journal, and processes that are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.support.record.journaled import batch


async def test_the_event_loop_does_not_wait_for_the_file(path: Path) -> None:
    """Other tasks run while a journal waits for the lock of another batch; a cancelled opening leaves it closed."""
    async with batch(path):
        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                group.start_soon(batch(path).__aenter__)
                for _ in range(20):
                    await anyio.sleep(0.005)
                group.cancel_scope.cancel()
    async with batch(path, ["Hi"]) as outcomes:
        assert [outcome.error async for outcome in outcomes] == [None]


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the rounds fork")
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Every item ends exactly once, no recorded call runs twice, and none is lost. `nox -s deep -- kills` runs many rounds."""
    rounds = subprocess.run(
        [sys.executable, "-m", "tests.record.journal_kills", "1", "20", "5"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert rounds.returncode == 0, rounds.stderr
    seen = json.loads(rounds.stdout)
    assert seen["kills"] > 0
    assert seen["done"] > 0

"""How durable runs are closed: whatever ends their block, nothing of them is left in the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from durables import Shop, durable

from aswarm.durable._engine import _current, _dbos_of_host
from aswarm.durable._leases import FileLeases


@pytest.mark.asyncio
async def test_a_block_that_is_cancelled_closes_everything(tmp_path: Path) -> None:
    """The engine has ended, so the next durable runs of this process have one of their own."""
    with anyio.CancelScope() as scope:
        async with durable(tmp_path, [], Shop()):
            scope.cancel()
            await anyio.sleep(60)
    assert _dbos_of_host() is None
    assert not _current


@pytest.mark.asyncio
async def test_an_opening_that_is_cancelled_closes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its last step, when the engine works already."""
    with anyio.CancelScope() as scope:

        async def cancelled(runs: Any) -> None:
            assert _dbos_of_host() is not None
            scope.cancel()
            await anyio.sleep(60)

        monkeypatch.setattr("aswarm.durable._executions.Executions.warn", cancelled)
        async with durable(tmp_path, [], Shop()):
            pass
    assert scope.cancelled_caught
    assert _dbos_of_host() is None
    assert not _current


FORKS = """
import os, sys, time, anyio
from aswarm.durable._leases import FileLeases

leases = FileLeases(sys.argv[1])
anyio.run(leases.hold, "me")
heard, said = os.pipe()
child = os.fork()
if child == 0:
    os.write(said, b"held" if leases.is_held else b"free")
    time.sleep(60)
print(child, os.read(heard, 4).decode(), flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """While the parent lives, it has its lock; when it is dead, the lock is free, though the child lives."""
    path = str(tmp_path / "runs.db")
    command = [sys.executable, "-c", FORKS, path]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        child, of_child = parent.stdout.readline().split()
        leases = FileLeases(path)
        assert of_child == "free"
        assert not leases.take("me")
        parent.stdin.close()
        assert parent.wait(60) == 0
        assert leases.take("me")
        os.kill(int(child), 9)
    leases.leave_to_parent()
    other = FileLeases(path)
    assert other.take("me")
    other.drop("me")

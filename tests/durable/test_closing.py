"""How durable runs are closed: whatever ends their block, nothing of them is left in the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from aswarm.durable._dbos import _dbos_of_host, _working
from tests.support.durable.durables import Shop, durable


@pytest.mark.asyncio
async def test_a_block_that_is_cancelled_closes_everything(tmp_path: Path) -> None:
    """The engine has ended, so the next durable runs of this process have one of their own."""
    with anyio.CancelScope() as scope:
        async with durable(tmp_path, [], Shop()):
            scope.cancel()
            await anyio.sleep(60)
    assert _dbos_of_host() is None
    assert not _working


@pytest.mark.asyncio
async def test_an_opening_that_is_cancelled_closes_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its last step, when the engine works already."""
    with anyio.CancelScope() as scope:

        async def cancelled(runs: Any) -> None:
            assert _dbos_of_host() is not None
            scope.cancel()
            await anyio.sleep(60)

        monkeypatch.setattr("aswarm.durable._durable_runs.DurableRuns._warn", cancelled)
        async with durable(tmp_path, [], Shop()):
            pass
    assert scope.cancelled_caught
    assert _dbos_of_host() is None
    assert not _working

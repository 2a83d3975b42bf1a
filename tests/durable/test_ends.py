"""Waits for the ends of runs: one query for all, none without a wait, and an end of their own when the runs are closed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from aswarm._values.errors import StoreError
from aswarm.durable._ends import Ends
from aswarm.runs._changes import Changes
from aswarm.testing import call
from tests.support.durable.durables import Shop, durable


class Ended:
    """In place of the log: the runs in `over` have ended. Each question is noted."""

    def __init__(self) -> None:
        self.over: set[str] = set()
        self.asked: list[list[str]] = []

    async def __call__(self, run_ids: Sequence[str]) -> list[str]:
        self.asked.append(list(run_ids))
        if len(self.asked) == 1:
            raise StoreError("disk I/O error")
        return list(self.over)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aswarm.durable._ends._QUERY_EVERY", 0.001)


async def unchanged() -> int:
    """The version of a log that does not change."""
    return 0


@asynccontextmanager
async def watched(ended: Ended) -> AsyncIterator[Ends]:
    ends = Ends(ended)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(ends.watch, Changes(unchanged))
            yield ends
            group.cancel_scope.cancel()


@pytest.mark.asyncio
async def test_waits_that_were_left_ask_nothing() -> None:
    """Nothing of them is kept; another wait for the same run is not disturbed, and a failing database ends nothing."""
    ended = Ended()
    async with watched(ended) as ends:
        async with anyio.create_task_group() as group:
            group.start_soon(ends.wait, "b")
            for _ in range(3):
                with anyio.move_on_after(0.001):
                    await ends.wait("a")
                with anyio.move_on_after(0.001):
                    await ends.wait("b")
            assert list(ends._waits) == ["b"]
            ended.over = {"b", "left in this moment"}
        assert not ends._waits
        await anyio.sleep(0.01)
        asked = len(ended.asked)
        await anyio.sleep(0.02)
        assert len(ended.asked) == asked


@pytest.mark.asyncio
async def test_a_wait_ends_when_the_runs_are_closed() -> None:
    """With an error, also for a caller that comes later."""
    raised: list[str] = []

    async def wait(ends: Ends) -> None:
        with pytest.raises(RuntimeError, match="before the end of the run 'a'") as error:
            await ends.wait("a")
        raised.append(str(error.value))

    async with anyio.create_task_group() as group, watched(Ended()) as ends:
        group.start_soon(wait, ends)
        await anyio.sleep(0.01)
    await wait(ends)
    assert len(raised) == 2


@pytest.mark.asyncio
async def test_a_wait_for_a_run_that_is_handed_back(tmp_path: Path) -> None:
    """Its process ends while it runs: the caller is told."""
    shop = Shop()
    async with anyio.create_task_group() as group, durable(tmp_path, [call("look")], shop) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")

        async def wait() -> None:
            with anyio.fail_after(60), pytest.raises(RuntimeError, match="the runs were closed"):
                await run.wait()

        group.start_soon(wait)
        with anyio.fail_after(60):
            await shop.began.wait()

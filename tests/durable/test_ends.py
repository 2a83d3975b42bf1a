"""Waits for the ends of runs: no query without a wait, and an error when the runs are closed."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import anyio
import pytest

from aswarm.testing import call
from tests.support.durable.durables import Shop, durable
from tests.support.runtime.virtual_time import jump
from tests.support.sql.hooks import before_statements

pytestmark = pytest.mark.asyncio


async def test_waits_that_were_left_ask_nothing(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another wait for the same run is not disturbed, and a failing database ends nothing."""
    asked: list[str] = []

    def note(_: sqlite3.Connection, statement: str) -> None:
        if statement.startswith("SELECT id FROM aswarm_run WHERE id IN"):
            asked.append(statement)
            if len(asked) == 1:
                raise sqlite3.OperationalError("disk I/O error")

    before_statements(monkeypatch, note)
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        left, kept = [await client.start("Boss", "Hi!", run_id=name) for name in ("a", "b")]
        async with anyio.create_task_group() as group:
            group.start_soon(kept.wait)
            for run in (left, kept, left, kept):
                with anyio.move_on_after(0.01):
                    await run.wait()
            jump(1)
            async with durable(tmp_path, ["1", "2"], shop):
                while (await client.get_run("b")).record.is_running:
                    await anyio.sleep(0.01)
                jump(1)
        assert kept.record.status == "finished"
        count = len(asked)
        assert all("(?)" in statement for statement in asked[-1:])
        jump(1)
        await anyio.sleep(0.1)
        assert len(asked) == count
    assert "the ends of runs cannot be looked up; another attempt follows" in caplog.text


async def test_a_wait_for_a_run_that_is_requeued_is_an_error(tmp_path: Path, shop: Shop) -> None:
    """If its process ends while the run goes on, the caller gets an error, and so does a later caller."""
    async with anyio.create_task_group() as group, durable(tmp_path, [call("look")], shop) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")

        async def wait() -> None:
            with pytest.raises(RuntimeError, match="the runs were closed before the end of the run 'r'"):
                await run.wait()

        group.start_soon(wait)
        await shop.began.wait()
    await wait()


async def test_a_process_that_stops_takes_no_run_of_the_queue(tmp_path: Path, shop: Shop) -> None:
    """DBOS must record no end of the run, and a cancel of a run that has just ended takes nothing."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")
        await run.wait()
        await runs._end_queued("r", "cancelled")
        await runs.drain(0)
        with pytest.raises(asyncio.CancelledError):
            await runs._execute("r")
        assert (await runs.get_run("r")).record.status == "finished"

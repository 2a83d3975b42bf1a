"""Durable runs in PostgreSQL: several processes, dead ones, and a server that cuts its connections."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import psycopg
import pytest

from aswarm import ConfigurationError
from aswarm.testing import call
from tests.support.durable.durables import Shop, die, durable

pytestmark = pytest.mark.asyncio


async def test_a_dead_process_is_replaced(tmp_path: Path, url: str, shop: Shop) -> None:
    """Its session is over, so its lock is free; the next process continues its runs."""
    async with durable(tmp_path, [call("count", number=1), call("slow")], shop, url=url) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        await shop.began.wait()
        die(runs)
    async with durable(tmp_path, ["Done."], shop, url=url) as runs:
        response = await (await runs.get_run("r")).result()
    assert [message["role"] for message in response.messages] == ["assistant", "tool"] * 2 + ["assistant"]
    assert shop.keys == {"count": ["r:1:0"], "slow": ["r:2:0"]}


async def test_cut_connections_are_made_again(
    tmp_path: Path, url: str, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """All connections at once, in the middle of a run: it ends as if nothing had happened, and the lock is held again."""
    script = [call("count", number=1), call("slow"), "Done."]
    with caplog.at_level(logging.WARNING, "aswarm"):
        async with durable(tmp_path, script, shop, url=url) as runs:
            run = await runs.start("Boss", "Hi!", run_id="r")
            await shop.began.wait()
            cut(url)
            while runs._engine._liveness.is_held:
                await anyio.sleep(0.001)
            shop.go.set()
            assert (await run.result()).text == "Done."
            while not runs._engine._liveness.is_held:
                await anyio.sleep(0.01)
            assert (await (await runs.get_run("r")).result()).context_variables == {"counted": [1]}
    assert shop.keys == {"count": ["r:1:0"], "slow": ["r:2:0"]}


def cut(url: str) -> None:
    """End all sessions of the database but this one."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'durable' AND pid <> pg_backend_pid()"
        )


@pytest.mark.heavy
async def test_opening_without_a_server_raises_an_error(tmp_path: Path, shop: Shop) -> None:
    """The database cannot be opened."""
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        async with durable(tmp_path, [], shop, url=f"postgresql:///x?host={tmp_path}"):
            pass

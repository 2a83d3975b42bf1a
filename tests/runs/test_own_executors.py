"""A class of a user's own that executes runs, on public names alone."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.conversations import MemoryStore, SQLiteStore
from aswarm.runs import NewRun, ShuttingDown
from aswarm.testing import ScriptedModel, call
from tests.support.runs.own_executors import OneAfterAnother


async def test_an_executor_of_ones_own_needs_public_names_only() -> None:
    """It starts, waits, answers, sends and cancels as the others do."""
    swarm = AsyncSwarm(ScriptedModel(["Hello.", "Hello again.", "And again.", "More."]).client())
    async with swarm, MemoryStore() as store, OneAfterAnother(swarm, agents=Agent(name="Boss"), store=store) as runs:
        first = await runs.start("Boss", "Hi!", conversation="c")
        other = await runs.start(runs.agents["Boss"], "Hi!", key="k")
        assert (first.record.is_queued, (await first.result()).text) == (True, "Hello.")
        assert (await runs.start("Boss", "Hi!", run_id=other.id, key="k")).id == other.id
        assert (await other.wait()).status == "finished"
        third = await first.send("And now?", key="k2")
        assert ((await third.result()).text, third.conversation) == ("And again.", "c")
        assert len(await runs.list(user="-", conversation="c")) == 2
        alone = await runs.start(NewRun("ann", messages="Hi!"))
        with pytest.raises(ConfigurationError, match="has no conversation to which a message can be sent"):
            await alone.send("And now?")
        await alone.cancel()


async def test_a_run_that_is_unfinished_returns_to_the_queue(tmp_path: Path) -> None:
    """The next process continues it, and a call that has finished does not run again."""
    steps: list[str] = []
    began = anyio.Event()

    async def book() -> str:
        """Book a table."""
        steps.append("book")
        return "Booked."

    async def slow() -> str:
        """Take a while."""
        steps.append("slow")
        began.set()
        await anyio.sleep(0 if len(steps) > 2 else 60)
        return "Done."

    boss = Agent(name="Boss", functions=[book, slow])
    script = [call("book"), call("slow"), "All done."]
    async with SQLiteStore(tmp_path / "a.sqlite") as store:
        async with (
            AsyncSwarm(ScriptedModel(script).client()) as swarm,
            OneAfterAnother(swarm, agents=boss, store=store) as runs,
        ):
            run = await runs.start("Boss", "Hi!", run_id="r")
            await began.wait()
            await runs.drain(0)
            with pytest.raises(ShuttingDown):
                await runs.start(NewRun("ann", "d", "Hi!"))
            assert (await runs.find_run("r")).record.is_queued
        async with (
            AsyncSwarm(ScriptedModel(["All done."]).client()) as swarm,
            OneAfterAnother(swarm, agents=boss, store=store) as runs,
        ):
            run = await runs.get_run("r")
            response = await run.result()
    assert (response.text, steps) == ("All done.", ["book", "slow"])
    assert [each.name for each in response.unknown_calls] == ["slow"]


async def test_a_draining_process_takes_no_run_and_its_neighbour_executes_it() -> None:
    """Otherwise a queue would be executed while the process waits for its last attempts."""
    swarm = AsyncSwarm(ScriptedModel(["Hello."]).client())
    boss = Agent(name="Boss")
    async with (
        swarm,
        MemoryStore() as store,
        OneAfterAnother(swarm, agents=boss, store=store) as runs,
        OneAfterAnother(swarm, agents=boss, store=store) as others,
    ):
        await runs.drain(0)
        run = await others.start("Boss", "Hi!")
        assert await runs.take(run.id) is None
        assert (await run.wait()).status == "finished"


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_take_that_is_cancelled_returns_its_run_to_the_queue(is_over: bool) -> None:
    """Another attempt executes the run, and an ended run stays as it is."""
    swarm = AsyncSwarm(ScriptedModel(["Hello."] * 3).client())
    async with swarm, MemoryStore() as store, OneAfterAnother(swarm, agents=Agent(name="Boss"), store=store) as runs:
        run = await runs.start("Boss", "Hi!")
        if is_over:
            await run.wait()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await runs.take(run.id)
        assert (await run.wait()).status == "finished"

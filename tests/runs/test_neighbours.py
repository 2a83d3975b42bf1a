"""Two `Runs` with one store, in one process: each sees the runs of the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.conversations import MemoryStore, SQLiteStore
from aswarm.runs import LocalRuns, NewRun, RunRecord
from aswarm.testing import Request, ScriptedModel, call
from tests.runs.test_own_executors import OneAfterAnother


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MemoryStore | SQLiteStore:
    return MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "runs.sqlite")


async def test_a_neighbour_waits_for_a_run_and_cancels_another(store: MemoryStore | SQLiteStore) -> None:
    """It gets the end within a second, and the run gets the request."""
    gates = {"c": anyio.Event(), "d": anyio.Event()}

    async def slow(conversation: str) -> str:
        """Wait."""
        await gates[conversation].wait()
        return "Done."

    def step(request: Request) -> Any:
        last = request.messages[-1]
        return call("slow", conversation=last["content"]) if last["role"] == "user" else "Done."

    boss, ended = Agent(name="Boss", functions=[slow]), list[RunRecord]()
    async with (
        AsyncSwarm(ScriptedModel(step).client()) as swarm,
        store,
        LocalRuns(swarm, agents=boss, store=store) as runs,
        LocalRuns(swarm, agents=boss, store=store) as others,
        anyio.create_task_group() as tasks,
    ):
        run = await runs.start(NewRun("ann", "c", "c"))
        same = await others.get_run(run.id, user="ann")

        async def wait() -> None:
            ended.append(await same.wait())

        with anyio.fail_after(10):
            tasks.start_soon(wait)
            await anyio.sleep(0.1)
            gates["c"].set()
            while not ended:
                await anyio.sleep(0.01)
            second = await runs.start(NewRun("ann", "d", "d"))
            assert (await others.cancel(second.id, user="ann")).status == "stopped"


async def test_a_reader_that_waits_before_the_neighbour_opens_is_woken(store: MemoryStore | SQLiteStore) -> None:
    """The neighbour executes the run of the queue."""

    class Paused(OneAfterAnother):
        async def _work(self) -> None:
            await anyio.sleep_forever()

    boss, ended = Agent(name="Boss"), list[RunRecord]()
    async with (
        AsyncSwarm(ScriptedModel(["Hello."]).client()) as swarm,
        store,
        Paused(swarm, agents=boss, store=store) as runs,
        anyio.create_task_group() as tasks,
    ):
        run = await runs.start(NewRun("ann", "c", "Hi!"))

        async def wait() -> None:
            ended.append(await run.wait())

        tasks.start_soon(wait)
        await anyio.sleep(0.1)
        with anyio.fail_after(10):
            async with OneAfterAnother(swarm, agents=boss, store=store):
                while not ended:
                    await anyio.sleep(0.01)
    assert ended[0].status == "finished"

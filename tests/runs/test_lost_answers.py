"""Starts that are cancelled or whose commit has no answer, and waits that nothing would end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm._sql.sqlite import SQLiteConnection
from aswarm.conversations import MemoryStore, PostgresStore, SQLiteStore
from aswarm.runs import LocalRuns, NewRun, Runs
from aswarm.testing import ScriptedModel, call
from tests.runs.test_own_executors import OneAfterAnother
from tests.support.conversations.stores import empty_schema


class Queue(OneAfterAnother):
    """Executes nothing."""

    async def _work(self) -> None:
        await anyio.sleep_forever()


def swarm(*answers: Any) -> AsyncSwarm:
    return AsyncSwarm(ScriptedModel(list(answers)).client())


@pytest.mark.parametrize("new", ["Boss", NewRun("ann", messages="Hi!")], ids=["new", "without a conversation"])
async def test_a_start_whose_commit_has_no_answer_makes_one_run(
    new: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database repeats the transaction, which finds its own run in the queue."""
    lost = [ConnectionError("the answer of the commit is lost")]
    commit = SQLiteConnection.commit

    def without_answer(self: SQLiteConnection, *, notifies: bool) -> None:
        commit(self, notifies=notifies)
        if notifies and lost:
            raise lost.pop()

    async with swarm() as no_model, SQLiteStore(tmp_path / "runs.sqlite") as store:
        monkeypatch.setattr(store._database, "_retry_seconds", 5)
        async with Queue(no_model, agents=Agent(name="Boss"), store=store) as runs:
            monkeypatch.setattr(SQLiteConnection, "commit", without_answer)
            monkeypatch.setattr(SQLiteConnection, "is_lost", lambda _, error: isinstance(error, ConnectionError))
            monkeypatch.setattr(SQLiteConnection, "reconnect", lambda _: None)
            with anyio.fail_after(10):
                run = await (runs.start(new) if isinstance(new, NewRun) else runs.start(new, "Hi!"))
            assert [record.id for record in await runs.records()] == [run.id]
        assert not lost


@pytest.mark.asyncio
async def test_a_cancelled_start_leaves_no_run_that_nothing_executes(tmp_path: Path) -> None:
    """A plain `task.cancel()`, as of `asyncio.timeout`, ignores the shields of anyio."""
    async with swarm(*["Done."] * 40) as model, LocalRuns(model, agents=Agent(), store=tmp_path / "r.sqlite") as runs:
        for steps in range(40):
            task = asyncio.create_task(runs.start(NewRun("ann", f"c{steps}", "Hi!")))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for record in await runs.list(user="ann"):
            with anyio.fail_after(10):
                assert (await (await runs.get_run(record.id, user="ann")).wait()).status == "finished"


async def test_a_wait_for_a_run_of_another_process_ends_with_the_runs(tmp_path: Path) -> None:
    """Otherwise nothing would look for the end of the run any more."""

    async def slow() -> str:
        await anyio.sleep_forever()
        return ""

    agent, path = Agent(functions=[slow]), tmp_path / "runs.sqlite"
    async with (
        swarm(call("slow")) as model,
        SQLiteStore(path) as first,
        SQLiteStore(path) as second,
        LocalRuns(model, agents=agent, store=first) as runs,
        anyio.create_task_group() as tasks,
    ):
        run, refused = await runs.start(NewRun("ann", "c", "Hi!")), list[str]()

        async def wait(others: Runs) -> None:
            with pytest.raises(RuntimeError, match="the runs were closed before the end of the run") as error:
                await (await others.get_run(run.id, user="ann")).wait()
            refused.append(str(error.value))

        async with LocalRuns(model, agents=agent, store=second) as others:
            tasks.start_soon(wait, others)
            await anyio.sleep(0.2)
        with anyio.fail_after(5):
            while not refused:
                await anyio.sleep(0.01)


@pytest.mark.processes
async def test_a_quiet_run_of_another_process_is_cancelled_at_once(postgres: str) -> None:
    """It writes nothing that would make its process look at the database."""

    async def slow() -> str:
        await anyio.sleep_forever()
        return ""

    agent, place = Agent(functions=[slow]), empty_schema(postgres)
    async with (
        swarm(call("slow")) as model,
        PostgresStore(place) as first,
        PostgresStore(place) as second,
        LocalRuns(model, agents=agent, store=first) as runs,
        LocalRuns(model, agents=agent, store=second) as others,
    ):
        run = await runs.start(NewRun("ann", "c", "Hi!"))
        await anyio.sleep(1)
        with anyio.fail_after(5):
            assert (await others.cancel(run.id, user="ann")).status == "stopped"


async def test_mistakes_of_a_start_name_the_remedy() -> None:
    async with swarm() as model, MemoryStore() as store, LocalRuns(model, agents=Agent(), store=store) as runs:
        with pytest.raises(ConfigurationError, match=r"needs an agent and messages, .* it got no messages"):
            await runs.start("Agent", None)  # type: ignore[call-overload]
        with pytest.raises(ConfigurationError, match="takes no other arguments"):
            await runs.start(NewRun("ann", "c", "Hi!"), "Hi!")  # type: ignore[call-overload]
        with pytest.raises(ConfigurationError, match="store must be a store with a database, not str"):
            OneAfterAnother(model, agents=Agent(), store="runs.sqlite")  # type: ignore[arg-type]

"""Failures around durable runs: a database that fails for a moment, half a start, a process that ends badly."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from dbos import DBOS

from aswarm import Agent, AsyncSwarm, ConfigurationError, RateLimits, RunError, StoreError
from aswarm.durable import DurableRuns
from aswarm.runs import Limits, NewRun, RunNotFound
from aswarm.testing import ScriptedModel, call
from tests.support.conversations.stores import change, user
from tests.support.durable.durables import Shop, allow, die, durable, empty_file, interrupted, refuse
from tests.support.runtime.virtual_time import jump
from tests.support.sql.hooks import before_statements

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("where", ["UPDATE OF attempt", "UPDATE OF ended"])
async def test_a_database_that_fails_for_a_moment_ends_nothing(
    tmp_path: Path, shop: Shop, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start and at the end of an attempt: it is repeated, and readers see no end before the database has it."""
    async with durable(tmp_path, [call("slow"), "Hello."], shop) as runs:
        refuse(runs, "aswarm_run", where)
        run = await runs.start("Boss", "Hi!")
        shop.go.set()
        while "another attempt follows" not in caplog.text:
            await anyio.sleep(0.01)
        assert (await runs.get_run(run.id)).record.is_running
        allow(tmp_path)
        jump(1)
        assert (await run.result()).text == "Hello."
    assert len(shop.keys["slow"]) == 1


async def test_an_attempt_that_cannot_start_is_left_to_the_next_process(
    tmp_path: Path, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that stops does not wait for its database, and logs the error."""
    async with durable(tmp_path, [], shop) as runs:
        refuse(runs, "aswarm_run", "UPDATE OF attempt")
        await runs.start("Boss", "Hi!", run_id="r")
        while "another attempt follows" not in caplog.text:
            await anyio.sleep(0.01)
        await runs.drain(0)
        jump(1)
        while "the execution of the run r failed" not in caplog.text:
            await anyio.sleep(0.01)
    allow(tmp_path)
    async with durable(tmp_path, ["Hello."], shop) as runs:
        assert (await (await runs.get_run("r")).result()).text == "Hello."


@pytest.mark.parametrize("moment", ["open", "opening"])
async def test_a_block_that_is_cancelled_closes_everything(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The next durable runs of this process have an engine of their own, also if the opening was cancelled at its last step."""
    opening, free = threading.Event(), threading.Event()

    def wait(_: sqlite3.Connection, statement: str) -> None:
        if "GROUP BY version, agent" in statement:
            opening.set()
            free.wait(60)

    await empty_file(tmp_path / "runs.db")
    with monkeypatch.context() as patched, anyio.CancelScope() as scope:
        if moment == "open":
            async with durable(tmp_path, [], shop):
                scope.cancel()
                await anyio.sleep(60)
        before_statements(patched, wait)
        async with anyio.create_task_group() as group:
            group.start_soon(durable(tmp_path, [], shop).__aenter__)
            await anyio.to_thread.run_sync(opening.wait)
            group.cancel_scope.cancel()
            free.set()
    async with durable(tmp_path, ["Hello."], shop) as runs:
        assert (await (await runs.start("Boss", "Hi!")).result()).text == "Hello."


async def test_a_run_that_cannot_be_handed_back_is_taken_over(tmp_path: Path, shop: Shop) -> None:
    """The next process treats it as the run of a dead process."""
    async with durable(tmp_path, [call("look")], shop) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        await shop.began.wait()
        refuse(runs, "aswarm_run", "UPDATE OF status")
    allow(tmp_path)
    shop.go.set()
    async with durable(tmp_path, ["Seen."], shop) as runs:
        assert (await (await runs.get_run("r")).result()).text == "Seen."


@pytest.mark.parametrize("table", ["workflow_status", "aswarm_run", "aswarm_entry", "aswarm_conversation"])
async def test_a_start_that_the_database_refuses_leaves_nothing(tmp_path: Path, shop: Shop, table: str) -> None:
    """The caller gets an error of aswarm; neither the record nor DBOS has the run, and the same id starts it later."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        refuse(runs, table, "INSERT")
        with pytest.raises(StoreError, match="the disk is full"):
            await runs.start("Boss", "Hi!", run_id="r")
        assert await runs.records() == []
        assert await runs.store.load("-/r") is None
        assert await DBOS.list_workflows_async() == []
        allow(tmp_path)
        assert (await (await runs.start("Boss", "Hi!", run_id="r")).result()).text == "Hello."


async def test_a_run_of_a_process_that_hangs_is_released(tmp_path: Path, shop: Shop) -> None:
    """An operator returns it to the queue. The next attempt does not wait for the earlier one, which writes nothing more."""

    async def hang() -> str:
        shop.note("hang")
        shop.began.set()
        with anyio.CancelScope(shield=True):
            await shop.go.wait()
        return "done"

    agents = [Agent(name="Boss", functions=[hang])]
    async with (
        durable(tmp_path, [call("hang"), "Done."], shop, agents=agents) as runs,
        durable(tmp_path, [], shop, agents=agents, concurrency=0) as client,
    ):
        run = await runs.start("Boss", "Hi!", run_id="r")
        await shop.began.wait()
        await client.release("r")
        response = await run.result()
        shop.go.set()
        await client.release("r")
        assert (await client.find_run("r")).record.status == "finished"
        with pytest.raises(RunNotFound):
            await client.release("none")
        answers = [message["content"] for message in response.messages][1:]
        assert answers == ["cancelled; its outcome is unknown", "Done."]
        assert (await (await client.find_run("r")).result()).messages == response.messages
    assert shop.keys == {"hang": ["r:1:0"]}


@pytest.mark.heavy
async def test_old_runs_are_deleted_by_limits(tmp_path: Path, shop: Shop) -> None:
    """The runs of users of a service need no call of `purge`. Runs of a program and waiting runs stay."""
    script = ["Hello.", call("pay", amount=1), "Hello."]
    async with durable(tmp_path, script, shop, limits=Limits(kept_runs=0)) as runs:
        await (await runs.start("Boss", "Hi!", run_id="of a program")).wait()
        await (await runs.start("Boss", "Hi!", run_id="waits", user="ann", conversation="a")).wait()
        await (await runs.start("Boss", "Hi!", run_id="r", user="ann", conversation="b")).wait()
        jump(61)
        while {record.id for record in await runs.records()} != {"of a program", "waits"}:
            await anyio.sleep(0.01)
        assert not await DBOS.list_workflows_async(workflow_ids=["r"])


async def test_a_purge_that_fails_halfway_can_be_repeated(tmp_path: Path, shop: Shop) -> None:
    """The id is free afterwards, for a run that starts its conversation again."""
    asked: list[int] = []

    def answer(request: Any) -> Any:
        asked.append(len(request.body["messages"]))
        return "Hello."

    async with durable(tmp_path, ScriptedModel(answer), shop) as runs:
        await (await runs.start("Boss", "Hi!", run_id="r")).wait()
        refuse(runs, "workflow_status", "DELETE")
        with pytest.raises(StoreError, match="the disk is full"):
            await runs.purge(older_than_seconds=0)
        allow(tmp_path)
        assert await runs.purge(older_than_seconds=0) == 1
        await (await runs.start("Boss", "Hi!", run_id="r")).wait()
    assert asked == [2, 2]


@pytest.mark.heavy
async def test_an_answer_is_made_again(tmp_path: Path, shop: Shop) -> None:
    """`regenerate` takes the last answer back."""
    async with durable(tmp_path, ["One.", "Two."], shop) as runs:
        await (await runs.start("Boss", "Hi!", user="ann", conversation="c")).wait()
        again = await (await runs.start(NewRun("ann", "c", regenerate=True))).last_entry()
        stored = await runs.store.load("ann/c")
    assert again.fields["response"]["text"] == "Two."
    assert stored is not None
    assert [message["content"] for message in stored.messages] == ["Hi!", "Two."]


async def test_limits_of_one_process_are_logged(tmp_path: Path, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """RateLimits are not shared; a warning has the names of the shared limits."""
    await empty_file(tmp_path / "runs.db")
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with AsyncSwarm(ScriptedModel([]).client(), rate_limits=RateLimits(requests_per_minute=60)) as swarm:
        with caplog.at_level(logging.WARNING, "aswarm"):
            async with DurableRuns(swarm, agents=shop.agents(), store=url, version="1") as runs:
                assert "apply to this process alone" in caplog.text
                with pytest.raises(RuntimeError, match="call _as_client"):
                    runs._as_client()


async def test_a_map_that_is_left_leaves_no_task(tmp_path: Path, shop: Shop) -> None:
    """Its runs go on."""

    def answer(request: Any) -> Any:
        asked = [message["content"] for message in request.body["messages"] if message["role"] == "user"]
        is_first = len(request.body["messages"]) == len(asked) + 1
        return call("slow") if asked == ["b"] and is_first else "Done."

    async with durable(tmp_path, ScriptedModel(answer), shop) as runs:
        before = asyncio.all_tasks()
        found = runs.map("Boss", ["a", "b"], run_ids=["a", "b"], concurrency=2)
        async for run in found:
            assert run.id == "a"
            break
        await found.aclose()
        assert not [task for task in asyncio.all_tasks() - before if "_ended" in repr(task) or "_next" in repr(task)]
        shop.go.set()
        assert (await (await runs.get_run("b")).result()).text == "Done."


async def test_a_run_fails_if_another_writer_changes_its_conversation(tmp_path: Path, shop: Shop) -> None:
    """Nothing is merged. The change may come during the run, or before its execution."""
    async with durable(tmp_path, [call("slow"), "Done."], shop) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")
        await shop.began.wait()
        stored = await runs.store.load("-/r")
        await runs.store.write("-/r", change(stored, user("Me too!")))
        shop.go.set()
        with pytest.raises(RunError, match="changed by another writer"):
            await run.result()
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        early = await client.start("Boss", "Hi!", run_id="2")
        stored = await client.store.load("-/2")
        await client.store.write("-/2", change(stored, user("Me too!")))
        async with durable(tmp_path, [], shop):
            with pytest.raises(RunError, match="changed by another writer"):
                await early.result()


async def test_a_run_without_a_conversation_survives(tmp_path: Path, shop: Shop) -> None:
    """There is nothing to write but its log."""
    async with durable(tmp_path, [call("look")], shop) as runs:
        await runs.start(NewRun("ann", messages=[user("Hi!")], run_id="r"))
        await shop.began.wait()
        die(runs)
    shop.go.set()
    async with durable(tmp_path, ["Seen."], shop) as runs:
        assert (await (await runs.get_run("r", user="ann")).result()).text == "Seen."


@pytest.mark.parametrize("death", [False, True], ids=["cancelled", "dead too often"])
async def test_a_run_that_no_process_executes_ends_with_what_it_has_recorded(
    tmp_path: Path, shop: Shop, *, death: bool
) -> None:
    """Its calls are in the conversation, so the same answers do not pay again."""
    script = [call("pay", call_id="p", amount=1), call("slow", call_id="s")]
    async with durable(tmp_path, script, shop) as runs:
        await (await runs.start("Boss", "Pay!", run_id="r")).wait()
        answered = await (await runs.get_run("r")).answer({"p": True})
        await shop.began.wait()
        die(runs)
    async with durable(tmp_path, [], shop, concurrency=int(death), max_deaths=1 if death else 5) as client:
        run = await client.get_run(answered.id)
        last = await run.last_entry() if death else (await run.cancel(), await run.last_entry())[1]
        assert last.type == ("RunFailed" if death else "RunStopped")
        stored = await client.store.load("-/r")
        assert stored is not None
        answers = [message["content"] for message in stored.messages if message["role"] == "tool"]
        assert answers == ["paid 1", "cancelled; its outcome is unknown"]
        assert [each.id for each in stored.unknown_calls] == ["s"]
        assert (await (await client.get_run("r")).answer({"p": True})).id == answered.id
    assert shop.keys["pay"] == [f"{answered.id}:0:0"]


@pytest.mark.heavy
async def test_a_run_that_kills_its_process_leaves_the_others_alone(tmp_path: Path, shop: Shop) -> None:
    """The last attempts are made one at a time, so only the executed run counts the death of the process."""
    async with durable(tmp_path, [call("look")] * 3, shop) as runs:
        for name in "abc":
            await runs.start("Boss", "Hi!", run_id=name)
        while len(shop.keys.get("look", ())) < 3:
            await anyio.sleep(0.01)
        die(runs)
    shop.keys.clear()
    async with durable(tmp_path, [], shop, max_deaths=2) as runs:
        while not shop.keys.get("look"):
            await anyio.sleep(0.01)
        await anyio.sleep(0.2)
        assert len(shop.keys["look"]) == 1
        die(runs)
    shop.go.set()
    async with durable(tmp_path, ["Seen."] * 3, shop, max_deaths=2) as runs:
        ends = [(await (await runs.get_run(name)).last_entry()).type for name in "abc"]
    assert sorted(ends) == ["RunFailed", "RunFinished", "RunFinished"]


async def test_a_sqlite_that_is_too_old_for_the_file_is_named(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DBOS stores times in milliseconds on Python 3.12; SQLite before 3.42 stores NULL instead, and every insert fails."""
    async with durable(tmp_path, [], shop):
        pass
    with closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
        file.execute("CREATE TABLE of_python_312 (created_at INTEGER DEFAULT (unixepoch('subsec') * 1000))")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 1))
    with pytest.raises(ConfigurationError, match=r"runs\.db need SQLite 3\.42"):
        async with durable(tmp_path, [], shop):
            pass


@pytest.mark.heavy
async def test_the_last_run_of_a_conversation_does_not_depend_on_clocks(tmp_path: Path, shop: Shop) -> None:
    """If the clock of the process that answers is an hour behind, the same answers again give the same run."""
    async with durable(tmp_path, [call("pay", call_id="p", amount=1), "Paid."], shop) as runs:
        run = await runs.start("Boss", "Pay!", run_id="r")
        await run.wait()
        with closing(sqlite3.connect(runs.store.path)) as file, file:
            file.execute("UPDATE aswarm_run SET started = started + 3600000, ended = ended + 3600000")
        first = await run.answer({"p": True})
        assert (await first.result()).text == "Paid."
        assert (await run.answer({"p": True})).id == first.id


async def test_a_run_that_is_cancelled_in_its_replay_ends_with_what_it_has_recorded(tmp_path: Path, shop: Shop) -> None:
    """The request is there before another process starts; it replays the record all the same, and runs nothing."""
    script = [[call("count", call_id="c", number=1), call("look", call_id="l"), call("count", call_id="d", number=2)]]
    await interrupted(tmp_path, script, shop)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
        file.execute("UPDATE aswarm_run SET cancel = 'enough'")
    async with durable(tmp_path, [], shop) as runs:
        response = await (await runs.get_run("r")).result()
    answers = [message["content"] for message in response.messages if message["role"] == "tool"]
    assert answers == ["counted 1", "cancelled; its outcome is unknown", "not run: interrupted"]
    assert response.stop == "cancelled"
    assert shop.keys["look"] == ["r:1:1"]


async def test_an_exit_of_the_instructions_ends_only_its_run(tmp_path: Path, shop: Shop) -> None:
    """The run has failed, and the worker executes the next run."""
    agents = [Agent(name="A", instructions=lambda _: sys.exit(2)), Agent(name="B")]
    async with durable(tmp_path, ["Hello."], shop, agents=agents) as runs:
        with pytest.raises(RunError, match=r"SystemExit\(2\)"):
            await (await runs.start("A", "Hi!")).result()
        assert (await (await runs.start("B", "Hi!")).result()).text == "Hello."

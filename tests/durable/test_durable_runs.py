"""A program with durable runs: starting, answers, other processes, batches and settings."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.batch import Item
from aswarm.durable import DurableRuns
from aswarm.runs import AnswersRefused, Limits, NewRun, RunActive, RunRecord
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.durable.durables import Shop, die, durable

pytestmark = pytest.mark.asyncio


async def test_another_answer_is_refused(tmp_path: Path, shop: Shop) -> None:
    """It is refused during and after the run that continues. An answer to a run that is active itself is refused as active."""
    async with durable(tmp_path, [call("pay", call_id="p", amount=5), call("slow"), "Paid."], shop) as runs:
        asked = await runs.start("Boss", "Pay!", run_id="a")
        await asked.wait()
        answered = await asked.answer({"p": True})
        await shop.began.wait()
        assert (await asked.answer({"p": True})).id == answered.id
        with pytest.raises(AnswersRefused, match=answered.id) as refused:
            await asked.answer({"p": False})
        assert refused.value.code == "call_not_open"
        with pytest.raises(RunActive):
            await answered.answer({"p": True})
        shop.go.set()
        await answered.wait()
        with pytest.raises(AnswersRefused):
            await asked.answer({"p": False})
    assert len(shop.keys["pay"]) == 1


@pytest.mark.parametrize(
    ("store", "text"),
    [
        ("runs.db", r"not 'runs\.db'; for this file, use sqlite:///runs\.db"),
        (Path("runs.db"), r"not PosixPath\('runs\.db'\); for this file, use sqlite:///runs\.db"),
        ("mysql://ann:s3cret@host/runs", "not 'mysql'"),
    ],
)
async def test_a_store_is_a_url(store: Any, text: str) -> None:
    """For a path, the error has the URL. It does not repeat a password."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        DurableRuns(AsyncSwarm(), agents=Agent(), store=store, version="1")
    assert "s3cret" not in str(caught.value)


@pytest.mark.heavy
async def test_a_run_in_the_queue_can_be_cancelled(tmp_path: Path, shop: Shop) -> None:
    """It never starts; an operator finds both runs, or all runs with one status."""
    async with durable(tmp_path, [call("slow"), "Done."], shop, concurrency=1) as runs:
        first = await runs.start("Boss", "Hi!", run_id="1")
        await shop.began.wait()
        second = await runs.start("Boss", "Hi!", run_id="2")
        assert (await second.cancel()).status == "stopped"
        assert (await second.result()).messages == []
        assert (await second.last_entry()).fields["message"] == "The run was cancelled."
        assert [record.id for record in await runs.records()] == ["2", "1"]
        assert [record.id for record in await runs.records(status="stopped")] == ["2"]
        shop.go.set()
        assert (await first.result()).text == "Done."
        assert (await runs.find_run("2")).record.reason == "cancelled"


async def test_a_run_of_another_process_is_cancelled_and_read(tmp_path: Path, shop: Shop) -> None:
    """A client of the same database, which executes nothing, reads the entries and stops the run."""
    async with durable(tmp_path, [call("slow")], shop) as runs, durable(tmp_path, [], shop, concurrency=0) as client:
        await runs.start("Boss", "Hi!", run_id="r")
        await shop.began.wait()
        found = await client.get_run("r")
        types = []
        async for entry in found.entries():
            types.append(entry.type)
            if entry.type == "ToolCallStarted":
                break
        assert types[0] == "RunStarted"
        assert (await found.cancel("enough")).reason == "enough"
        assert (await client.find_run("r")).record.reason == "enough"


async def test_the_runs_of_all_processes_together_are_limited(tmp_path: Path, shop: Shop) -> None:
    """The limit is in the database: a process that gives none keeps it, and math.inf takes it away."""
    async with durable(tmp_path, [], shop, concurrency=0, global_concurrency=1):
        pass
    async with durable(tmp_path, [call("slow")] * 2 + ["Done."] * 2, shop, concurrency=5) as runs:
        started = [await runs.start("Boss", "Hi!") for _ in range(2)]
        await shop.began.wait()
        await anyio.sleep(0.2)
        assert len(shop.keys["slow"]) == 1
        shop.go.set()
        assert [(await run.result()).text for run in started] == ["Done.", "Done."]
    shop.go = anyio.Event()
    async with durable(tmp_path, [call("slow")] * 2, shop, concurrency=5, global_concurrency=math.inf) as runs:
        for _ in range(2):
            await runs.start("Boss", "Hi!")
        while len(shop.keys["slow"]) < 4:
            await anyio.sleep(0.01)


async def test_a_limited_number_of_runs_starts_in_some_seconds(tmp_path: Path, shop: Shop) -> None:
    """The limit is for all processes. A later run starts when the time has passed, even if nothing else happens."""
    async with durable(tmp_path, ["1", "2", "3"], shop, starts_per=(2, 0.3)) as runs:
        # Just before a new second: some versions of DBOS and Python count in whole seconds.
        await anyio.sleep(max(0, 0.8 - time.time() % 1))
        before = anyio.current_time()
        started = [await runs.start("Boss", "Hi!") for _ in range(3)]
        assert {(await run.result()).text for run in started} == {"1", "2", "3"}
        assert anyio.current_time() - before > 0.25


async def test_a_queued_run_that_is_cancelled_uses_no_start(tmp_path: Path, shop: Shop) -> None:
    """Otherwise the runs after it would wait until its turn has passed."""
    async with durable(tmp_path, ["1", "2"], shop, starts_per=(1, 0.5)) as runs:
        first, second, third = [await runs.start("Boss", "Hi!") for _ in range(3)]
        await first.result()
        assert (await second.cancel()).state == "stopped (cancelled)"
        assert (await third.result()).text == "2"
        with closing(sqlite3.connect(tmp_path / "runs.db")) as connection:
            started = connection.execute("SELECT workflow_uuid FROM workflow_status").fetchall()
    assert {run_id for (run_id,) in started} == {first.id, third.id}


@pytest.mark.parametrize("starts", [(0, 60), (-1, 60), (5, -1), (math.nan, 1), (5, math.inf)], ids=str)
async def test_a_limit_of_starts_must_let_runs_start(starts: tuple[float, float], shop: Shop) -> None:
    """It would be kept in the database, for all processes."""
    swarm = AsyncSwarm(ScriptedModel([]).client())
    with pytest.raises(ConfigurationError, match="starts_per"):
        DurableRuns(swarm, agents=shop.agents(), store="sqlite:///runs.db", version="1", starts_per=starts)


async def test_a_run_keeps_its_version_when_it_is_taken_over(tmp_path: Path, shop: Shop) -> None:
    """A process of another version returns the run of the dead one to the queue, and leaves it there."""
    async with durable(tmp_path, [call("look")], shop) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        await shop.began.wait()
        die(runs)
    shop.go.set()
    async with durable(tmp_path, [], shop, version="2") as runs:
        while [record.id for record in await runs.records(status="unreachable")] != ["r"]:
            await anyio.sleep(0.01)
        await anyio.sleep(0.1)
        assert (await runs.find_run("r")).record.is_running
    async with durable(tmp_path, ScriptedModel(lambda request: "Seen."), shop) as runs:
        assert (await (await runs.get_run("r")).result()).text == "Seen."


async def test_a_batch_is_a_map(tmp_path: Path, shop: Shop) -> None:
    """Each item is a run with an id of its own; the second call finds the results, and asks no model."""
    model = ScriptedModel(lambda request: ScriptedAnswer(request.body["messages"][-1]["content"].upper()))
    items = ["a", "b", "c"]
    for script in (model, []):
        async with durable(tmp_path, script, shop) as runs:
            found = {
                run.id: (await run.result()).text
                async for run in runs.map("Boss", items, run_ids=lambda at: f"item-{at}", concurrency=2)
            }
            assert found == {"item-0": "A", "item-1": "B", "item-2": "C"}


@pytest.mark.heavy
async def test_a_map_does_not_wait_for_its_items(tmp_path: Path, shop: Shop) -> None:
    """An ended run is yielded while the source of the items waits for the next item. An item may name its agent."""
    more = anyio.Event()

    async def items() -> AsyncGenerator[Item]:
        yield Item("a", id="first", agent=shop.agents()[1])
        await more.wait()

    async with durable(tmp_path, ["A"], shop) as runs:
        async for run in runs.map("Boss", items()):
            assert (run.id, run.record.agent) == ("first", "Clerk")
            more.set()


@pytest.mark.parametrize(
    ("item", "settings", "text"),
    [
        (Item("a"), {}, "needs an id"),
        ("a", {}, "an id for each item"),
        (Item("a", id=1, resume=True), {}, "answer()"),
        (Item("a", id=1), {"concurrency": 0}, "at least 1"),
    ],
    ids=str,
)
async def test_an_item_that_a_map_cannot_run_is_refused(
    tmp_path: Path, shop: Shop, item: Any, settings: Any, text: str
) -> None:
    """The error names the remedy."""
    async with durable(tmp_path, [], shop) as runs:
        with pytest.raises(ConfigurationError, match=re.escape(text)):
            await anext(runs.map("Boss", [item], **settings))


async def test_a_cancel_that_meets_the_start_of_its_run_waits_for_its_function(tmp_path: Path, shop: Shop) -> None:
    """A process has started the run since `cancel` read it in the queue. So it is not taken from this process."""
    ended = anyio.Event()

    async def work() -> str:
        """Work."""
        shop.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
            ended.set()

    agents = [Agent(name="Boss", functions=[work])]
    async with durable(tmp_path, [call("work")], shop, agents=agents) as runs:
        read = runs.get

        async def read_before_the_start(run_id: str, *, user: str) -> RunRecord:
            record = await read(run_id, user=user)
            await shop.began.wait()
            return record

        run = await runs.start("Boss", "Go!", run_id="a")
        assert run.record.is_queued
        runs.get = read_before_the_start  # type: ignore[method-assign]
        record = await run.cancel()
        assert ended.is_set()
        assert (record.status, record.reason) == ("stopped", "cancelled")
        with closing(sqlite3.connect(runs.store.path)) as file:
            assert file.execute("SELECT attempt, deaths FROM aswarm_run").fetchall() == [(1, 0)]


async def test_a_waiting_run_without_its_conversation_can_be_stopped(tmp_path: Path, shop: Shop) -> None:
    """A deleted conversation is not made again. A run may also have no conversation, or be answered already."""
    waits = call("pay", call_id="p", amount=5)
    async with durable(tmp_path, [waits, waits, waits, "Paid."], shop) as runs:
        other = await runs.start("Boss", "Pay!", run_id="b")
        await other.wait()
        await runs.store.delete("-/b")
        assert (await other.cancel()).status == "stopped"
        assert await runs.store.load("-/b") is None
        alone = await runs.start(NewRun("-", messages=[{"role": "user", "content": "Pay!"}]))
        await (await runs.get_run(alone.id)).wait()
        assert (await (await runs.get_run(alone.id)).cancel()).reason == "cancelled"
        asked = await runs.start("Boss", "Pay!", run_id="a")
        await asked.wait()
        assert [record.id for record in await runs.records(status="waiting")] == ["a"]
        await (await asked.answer({"p": True})).wait()
        await asked.cancel()
        assert (await runs.get_run("a")).record.status == "finished"
        assert (await asked.result()).stop == "waiting"


@pytest.mark.heavy
async def test_a_run_that_waits_is_not_purged(tmp_path: Path, shop: Shop) -> None:
    """After its answer it is deleted with its conversation, when no run of the conversation is left."""
    async with durable(tmp_path, [call("pay", call_id="p", amount=5), call("slow"), "Paid."], shop) as runs:
        asked = await runs.start("Boss", "Pay!", run_id="a")
        await asked.wait()
        assert await runs.purge(older_than_seconds=0) == 0
        answered = await asked.answer({"p": True})
        await shop.began.wait()
        assert await runs.purge(older_than_seconds=0) == 0
        shop.go.set()
        await answered.wait()
        assert await runs.store.load("-/a") is not None
        assert await runs.purge(older_than_seconds=0) == 2
        assert await runs.store.load("-/a") is None


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"version": ""}, "version must be a text"),
        ({"concurrency": -1}, "concurrency must be"),
        ({"store": "runs.db"}, "store must be a URL"),
        ({"store": "sqlite:///"}, "need a file"),
        ({"store": "sqlite:///:memory:"}, "need a file"),
    ],
    ids=str,
)
async def test_settings_are_checked(settings: dict[str, Any], text: str) -> None:
    """The constructor raises the error."""
    given: dict[str, Any] = {"agents": Agent(name="A"), "store": "sqlite:///runs.db", "version": "1", **settings}
    with pytest.raises(ConfigurationError, match=text):
        DurableRuns(AsyncSwarm(ScriptedModel([]).client()), **given)


async def test_there_is_one_in_a_process(tmp_path: Path, shop: Shop) -> None:
    """A second one is refused while the first is open; an object is not opened twice; both can be opened afterwards."""
    async with durable(tmp_path, [], shop) as runs:
        with pytest.raises(ConfigurationError, match="can have only one DBOS"):
            async with durable(tmp_path, [], shop):
                pass
        with pytest.raises(RuntimeError, match="already open"):
            await runs.__aenter__()
    async with durable(tmp_path, [], shop):
        pass
    with pytest.raises(RuntimeError, match="not open"):
        await runs.start("Boss", "Hi!")


async def test_other_versions_wait(tmp_path: Path, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """A process of another version logs the number of the runs that wait for another version, and does not execute them."""
    async with durable(tmp_path, [], shop, concurrency=0, version="1") as client:
        await client.start("Boss", "Hi!", run_id="r")
    with caplog.at_level(logging.WARNING, "aswarm"):
        async with durable(tmp_path, [], shop, version="2") as runs:
            assert "1 queued runs need the version '1' and the agent 'Boss'" in caplog.text
            await anyio.sleep(0.2)
            assert (await runs.get_run("r")).record.is_running
    async with durable(tmp_path, ["Hello."], shop, version="1") as runs:
        assert (await (await runs.get_run("r")).result()).text == "Hello."


async def test_a_run_waits_for_a_process_with_its_agent(tmp_path: Path, shop: Shop) -> None:
    """A process without it does not execute the run. Reading the result without the agent is an error with its name."""
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        run = await client.start("Boss", "Hi!", run_id="r")
        async with durable(tmp_path, ["Hello."], shop, agents=Agent(name="Other")) as runs:
            assert (await (await runs.start("Other", "Hi!")).result()).text == "Hello."
            while [record.id for record in await runs.records(status="unreachable")] != ["r"]:
                await anyio.sleep(0.01)
            assert (await runs.find_run("r")).record.is_running
        async with durable(tmp_path, ["Hello."], shop):
            assert (await run.result()).text == "Hello."
    async with durable(tmp_path, ["Hello."], shop) as runs:
        await (await runs.start("Boss", "Hi!", run_id="2")).result()
    async with durable(tmp_path, [], shop, agents=Agent(name="Other")) as runs:
        with pytest.raises(ConfigurationError, match="ended with the agent 'Boss'"):
            await (await runs.find_run("2")).result()


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits)])
async def test_each_limit_is_set_alone(name: str, tmp_path: Path) -> None:
    """The other limits are None."""
    alone: dict[str, Any] = {name: 7}
    swarm, url = AsyncSwarm(ScriptedModel([]).client()), f"sqlite:///{tmp_path}/runs"
    runs = DurableRuns(swarm, agents=Agent(), store=url, version="1", limits=Limits(**alone))
    assert {key: value for key, value in dataclasses.asdict(runs.limits).items() if value is not None} == alone


async def test_an_agent_may_stand_for_its_name(tmp_path: Path, shop: Shop) -> None:
    """The runs must have an agent with this name."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        assert (await (await runs.start(shop.agents()[0], "Hi!")).result()).text == "Hello."
        with pytest.raises(ConfigurationError, match="do not have the agent 'Other'"):
            await runs.start(Agent(name="Other"), "Hi!")

"""What goes wrong around durable runs: a database that fails for a moment, half a start, a process that ends badly."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("dbos", reason="durable runs need dbos")

from dbos import DBOS
from dbos._error import DBOSWorkflowConflictIDError
from durables import Shop, die, durable
from stores import change, user

from aswarm import Agent, AsyncSwarm, ConfigurationError, RateLimits, RunError, agent_tool
from aswarm.cli._runs import _work
from aswarm.durable import DurableRuns
from aswarm.durable._attempt import RunAttempt
from aswarm.durable._engine import Engine
from aswarm.durable._log import QueuedWork
from aswarm.durable._replay import Replay
from aswarm.guards import Block, guard_input
from aswarm.serve import Entry, Limits, NewRun, Run, RunActive, RunNotFound, ShuttingDown
from aswarm.serve._entries import now
from aswarm.serve._live import LiveRun
from aswarm.serve._log import LogRow
from aswarm.testing import ScriptedModel, call

pytestmark = pytest.mark.sampled


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aswarm.durable._durable_runs._SECONDS_AFTER_FAILURE", 0.01)


class Failing:
    """Stands in place of a method, and fails the first time."""

    def __init__(self, method: Any, error: Exception, times: int = 1) -> None:
        self.method = method
        self.error = error
        self.times = times

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return self.method(*arguments, **named)


DISK = sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("name", ["take", "owners"])
@pytest.mark.asyncio
async def test_a_log_that_fails_for_a_moment_ends_nothing(
    tmp_path: Path, shop: Shop, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another attempt follows, and the run ends as ever."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        monkeypatch.setattr(runs._log, name, Failing(getattr(runs._log, name), DISK))
        with anyio.fail_after(60):
            assert (await (await runs.start("Boss", "Hi!")).result()).text == "Hello."
            while "another attempt follows" not in caplog.text:
                await anyio.sleep(0.01)


@pytest.mark.asyncio
async def test_the_end_of_a_run_is_written_until_it_is_there(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is not over for its readers before the log has its end."""
    monkeypatch.setattr("aswarm.serve._log_access._SECONDS_AFTER_FAILURE", 0.01)
    async with durable(tmp_path, ["Hello."], shop) as runs:
        monkeypatch.setattr(runs._log, "append", Failing(runs._log.append, DISK, times=5))
        with anyio.fail_after(60):
            assert (await (await runs.start("Boss", "Hi!")).result()).text == "Hello."


@pytest.mark.asyncio
async def test_an_end_that_cannot_be_written_is_left_to_the_next_process(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends does not wait for its database; the next one writes the end, from the record."""
    monkeypatch.setattr("aswarm.serve._log_access._SECONDS_AFTER_FAILURE", 0.01)
    async with durable(tmp_path, ["Hello."], shop) as runs:
        monkeypatch.setattr(runs._log, "append", Failing(runs._log.append, DISK, times=10**9))
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            while (stored := await runs.store.load("-/r")) is None or stored.stop is None:
                await anyio.sleep(0.01)
        with anyio.fail_after(60):
            await runs.drain(0)
    async with durable(tmp_path, ["Hello."], shop) as runs:
        with anyio.fail_after(60):
            assert (await (await runs.run("r")).result()).text == "Hello."


@pytest.mark.asyncio
async def test_a_run_that_could_not_begin_begins_later(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is recorded, so its caller has its id."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        monkeypatch.setattr(runs._engine, "start", Failing(runs._engine.start, RuntimeError("no")))
        run = await runs.start("Boss", "Hi!")
        with anyio.fail_after(60):
            assert (await run.result()).text == "Hello."
    assert "could not begin" in caplog.text


@pytest.mark.asyncio
async def test_a_run_that_cannot_begin_holds_up_no_other(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process tries it again after a second, and executes the ones behind it meanwhile."""
    async with durable(tmp_path, ["Hello."], shop, concurrency=1) as runs:
        start = runs._engine.start
        attempts: list[str] = []

        async def begin(run_id: str) -> None:
            attempts.append(run_id)
            if run_id == "bad":
                raise RuntimeError("no")
            await start(run_id)

        monkeypatch.setattr(runs._engine, "start", begin)
        await runs.start("Boss", "Hi!", run_id="bad")
        with anyio.fail_after(60):
            assert (await (await runs.start("Boss", "Hi!", run_id="good")).result()).text == "Hello."
    assert attempts.count("bad") < 10
    assert "could not begin" in caplog.text


@pytest.mark.asyncio
async def test_a_run_that_never_began_here_is_left(tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has not begun it when another process takes it over; `drain` does not wait for it."""
    async with durable(tmp_path, [], shop) as runs:

        async def begin(run_id: str) -> None:
            """As DBOS, when it finds the workflow in the database: an answer was lost."""

        monkeypatch.setattr(runs._engine, "start", begin)
        await runs.start("Boss", "Hi!", run_id="r")
        assert "r" in runs._live
        async with durable(tmp_path, [], shop, concurrency=0) as other:
            assert other._log.take("r") is not None
            with anyio.fail_after(60):
                while runs._live:
                    await anyio.sleep(0.01)


@pytest.mark.asyncio
async def test_a_claim_whose_answer_was_lost_is_given_back(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database has written it; the process does not know, and lives."""
    monkeypatch.setattr("aswarm.durable._executions._CLAIM_SECONDS", 0)
    async with durable(tmp_path, ["Hello."], shop) as runs:
        claim = runs._log.claim

        def lost(*args: Any) -> Any:
            found = claim(*args)
            if found:
                monkeypatch.setattr(runs._log, "claim", claim)
                raise DISK
            return found

        monkeypatch.setattr(runs._log, "claim", lost)
        async with durable(tmp_path, [], shop, concurrency=0) as client:
            run = await client.start("Boss", "Hi!", run_id="r")
            with anyio.fail_after(60):
                assert (await run.result()).text == "Hello."


@pytest.mark.asyncio
async def test_a_run_whose_workflow_is_over_has_failed(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a tool of DBOS had cancelled it between two processes; the text says so."""
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        await client.start("Boss", "Hi!", run_id="r")
        assert client._log.claim(1, "1", ["Boss"]) == [("r", True)]

    async def cancelled(self: Engine, run_id: str) -> str:
        return "CANCELLED"

    monkeypatch.setattr(Engine, "begin_again", cancelled)
    async with durable(tmp_path, [], shop) as runs:
        with anyio.fail_after(60), pytest.raises(RunError, match="has the status CANCELLED in DBOS"):
            await (await runs.run("r")).result()


@pytest.mark.asyncio
async def test_a_run_that_cannot_be_handed_back_is_taken_over(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Like that of a dead process."""
    async with durable(tmp_path, [call("look")], shop) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
        monkeypatch.setattr(runs._log, "put_back", Failing(None, DISK))
    assert "cannot be put back" in caplog.text
    shop.go.set()
    async with durable(tmp_path, ["Seen."], shop) as runs:
        with anyio.fail_after(60):
            assert (await (await runs.run("r")).result()).text == "Seen."


@pytest.mark.asyncio
async def test_a_process_that_ends_takes_nothing(tmp_path: Path, shop: Shop) -> None:
    """What it has taken out of the queue at the last moment goes back."""
    async with durable(tmp_path, [call("slow")], shop, global_concurrency=1) as runs:
        await runs.start("Boss", "Hi!", run_id="1")
        with anyio.fail_after(60):
            await shop.began.wait()
        await runs.start("Boss", "Hi!", run_id="2")
        runs.draining.set()
        with pytest.raises(asyncio.CancelledError):
            await runs._executions.execute("2")
        assert runs._log.claim(1, "1", ["Boss"]) == []  # the limit holds
        runs._log.limit("concurrency", math.inf)
        assert runs._log.claim(1, "1", ["Boss"]) == [("2", True)]


@pytest.mark.asyncio
async def test_a_run_of_another_process_is_not_begun(tmp_path: Path, shop: Shop) -> None:
    """Half a start that another process has taken away leaves nothing."""
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        with pytest.raises(RunNotFound):
            client._log.begun("r", LogRow(0, 0, b""), QueuedWork("1", "Boss", b""), claims=True)
        assert client._log.take("r") is None


@pytest.mark.asyncio
async def test_a_start_that_waits_for_another_process_can_be_left(tmp_path: Path, shop: Shop) -> None:
    """The other one lives, and has not recorded the run yet. Draining ends the wait too."""
    async with (
        durable(tmp_path, [], shop, concurrency=0) as slow,
        durable(tmp_path, [], shop, concurrency=0) as runs,
    ):
        new = NewRun("-", "r", [{"role": "user", "content": "Hi!"}], agent="Boss", run_id="r")
        await slow._access.call(slow._log.begin, new, "r", slow.limits)
        with anyio.fail_after(60):
            with anyio.move_on_after(0.05) as scope:
                await runs.start("Boss", "Hi!", run_id="r")
            assert scope.cancelled_caught
            runs.draining.set()
            with pytest.raises(ShuttingDown):
                await runs._begin(new, runs.drivers.driver(new))


@pytest.mark.asyncio
async def test_the_time_in_the_queue_is_free(tmp_path: Path, shop: Shop) -> None:
    """The seconds of a run count from the moment when a process executes it, and by a clock that does not step."""
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        await client.start("Boss", "Hi!", run_id="r")
        await client._access.call(client._log._rows, "UPDATE aswarm_run SET started = 1")
    async with durable(tmp_path, ["Hello."], shop) as runs:
        with anyio.fail_after(60):
            assert (await (await runs.run("r")).result()).text == "Hello."


@pytest.mark.parametrize(("sync", "number"), [("normal", 1), ("full", 2)])
@pytest.mark.asyncio
async def test_every_write_waits_for_the_disk_if_asked(tmp_path: Path, shop: Shop, sync: Any, number: int) -> None:
    """The log of the runs, and not only the steps."""
    async with durable(tmp_path, [], shop, concurrency=0, sync=sync) as runs:
        assert await runs._access.call(runs._log._rows, "PRAGMA synchronous") == [(number,)]


@pytest.mark.asyncio
async def test_numbers_that_no_entry_has_are_not_the_last_one(tmp_path: Path, shop: Shop) -> None:
    """An execution counts from behind a gap. Until it adds something, and once it has lost the run, the log knows the last number."""
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        await client.start("Boss", "Hi!", run_id="r")
        live = LiveRun(await client.get("r", user="-"))
        live.begin_at(10_001)
        client._live["r"] = live
        assert (await client.get("r", user="-")).last == 0
        live.add(Entry(10_001, 0, "TurnStarted", {}))
        assert (await client.get("r", user="-")).last == 10_001
        live.fence()
        assert (await client.get("r", user="-")).last == 0
        del client._live["r"]


@pytest.mark.asyncio
async def test_old_runs_go_by_limits(tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the users of a service, without a call of `purge`. Runs of a program stay, and those that wait for an answer."""
    monkeypatch.setattr("aswarm.durable._durable_runs._FORGET_EVERY", 0.0)
    script = ["Hello.", call("pay", amount=1), "Hello."]
    async with durable(tmp_path, script, shop, limits=Limits(kept_runs=0)) as runs:
        await (await runs.start("Boss", "Hi!", run_id="of a program")).wait()
        await (await runs.start("Boss", "Hi!", run_id="waits", user="ann", conversation="a")).wait()
        await runs.start("Boss", "Hi!", run_id="r", user="ann", conversation="b")
        with anyio.fail_after(60):
            while {record.id for record in await runs.records()} != {"of a program", "waits"}:
                await anyio.sleep(0.01)
            assert not await DBOS.list_workflows_async(workflow_ids=["r"])


@pytest.mark.asyncio
async def test_a_purge_that_fails_halfway_can_be_repeated(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id is free afterwards, for a run that begins its conversation from the start."""
    asked: list[int] = []

    def answer(request: Any) -> Any:
        asked.append(len(request.body["messages"]))
        return "Hello."

    async with durable(tmp_path, ScriptedModel(answer), shop) as runs:
        await (await runs.start("Boss", "Hi!", run_id="r")).wait()
        monkeypatch.setattr(runs._engine, "delete", Failing(runs._engine.delete, OSError("away")))
        with pytest.raises(OSError, match="away"):
            await runs.purge(0)
        assert await runs.purge(0) == 1
        with anyio.fail_after(60):
            await (await runs.start("Boss", "Hi!", run_id="r")).wait()
    assert asked == [2, 2]


@pytest.mark.asyncio
async def test_a_run_without_a_reader_ends(tmp_path: Path, shop: Shop) -> None:
    """With a number of seconds, as of `aswarm.serve`."""
    async with durable(tmp_path, [call("slow")], shop) as runs:
        new = NewRun("ann", "c", [{"role": "user", "content": "Hi!"}], on_disconnect=0.05)
        with anyio.fail_after(60):
            last = await Run(runs, await runs.start(new)).result()
    assert last.fields["reason"] == "no_reader"


@pytest.mark.asyncio
async def test_an_answer_is_made_again(tmp_path: Path, shop: Shop) -> None:
    """`regenerate` takes the last answer back."""
    async with durable(tmp_path, ["One.", "Two."], shop) as runs:
        await (await runs.start("Boss", "Hi!", user="ann", conversation="c")).wait()
        again = await Run(runs, await runs.start(NewRun("ann", "c", regenerate=True))).result()
        stored = await runs.store.load("ann/c")
    assert again.fields["response"]["text"] == "Two."
    assert stored is not None
    assert [message["content"] for message in stored.messages] == ["Hi!", "Two."]


@pytest.mark.asyncio
async def test_a_message_that_a_guard_refuses_is_not_kept(tmp_path: Path, shop: Shop) -> None:
    """As in a conversation without durability."""
    from durables import empty_file

    def check(checked: Any) -> Any:
        return Block("no") if checked.text == "bad" else None

    await empty_file(tmp_path / "runs.db")
    async with (
        AsyncSwarm(ScriptedModel(["Hello."]).client(), middleware=[guard_input(check)]) as swarm,
        DurableRuns(swarm, agents=shop.agents(), store=f"sqlite:///{tmp_path / 'runs.db'}", version="1") as runs,
    ):
        await (await runs.start("Boss", "Hi!", user="ann", conversation="c")).wait()
        with pytest.raises(RunError):
            await (await runs.start("Boss", "bad", user="ann", conversation="c")).result()
        stored = await runs.store.load("ann/c")
    assert stored is not None
    assert [message["content"] for message in stored.messages] == ["Hi!", "Hello."]


@pytest.mark.asyncio
async def test_an_agent_inside_a_call_is_a_part_of_it(tmp_path: Path, shop: Shop) -> None:
    """Its completions are no steps of their own."""
    helper = Agent(name="Helper")
    boss = Agent(name="Boss", functions=[agent_tool(helper)])
    script = [call("helper", request="Help!"), "I help.", "Done."]
    async with durable(tmp_path, script, shop, agents=boss) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")
        assert (await run.result()).text == "Done."
        names = [step["function_name"].split(":")[0] for step in await DBOS.list_workflow_steps_async("r")]
    assert names == ["completion", "started", "tool", "completion"]


@pytest.mark.asyncio
async def test_limits_of_one_process_are_told(tmp_path: Path, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    """RateLimits are not shared; a warning says what is."""
    from durables import empty_file

    await empty_file(tmp_path / "runs.db")
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with AsyncSwarm(ScriptedModel([]).client(), limits=RateLimits(60)) as swarm:
        with caplog.at_level(logging.WARNING, "aswarm"):
            async with DurableRuns(swarm, agents=shop.agents(), store=url, version="1") as runs:
                assert "hold for this process alone" in caplog.text
                with pytest.raises(RuntimeError, match="make the client first"):
                    runs.as_client()


@pytest.mark.asyncio
@pytest.mark.parametrize("signals", [1, 2])
async def test_a_worker_ends_after_a_signal(tmp_path: Path, shop: Shop, signals: int) -> None:
    """It waits for its runs first; a second signal ends the wait, and another process continues the run."""
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        await client.start("Boss", "Hi!", run_id="r")
    runs = DurableRuns(
        AsyncSwarm(ScriptedModel([call("look"), "Done."]).client()),
        agents=shop.agents(),
        store=f"sqlite:///{tmp_path / 'runs.db'}",
        version="1",
    )

    async def end() -> None:
        await shop.began.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        while not runs.draining.is_set:
            await anyio.sleep(0.01)
        if signals == 1:
            shop.go.set()
        else:
            os.kill(os.getpid(), signal.SIGTERM)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(end)
            await _work(runs, 600)
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        assert (await client.find("r")).record.status == ("finished" if signals == 1 else "running")


@pytest.mark.asyncio
async def test_a_map_needs_ids(tmp_path: Path, shop: Shop) -> None:
    """Without them nothing could be continued."""
    async with durable(tmp_path, [], shop) as runs:
        with pytest.raises(ConfigurationError, match="an id for each item"):
            async for _ in runs.map("Boss", ["a"]):
                pass


@pytest.mark.asyncio
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
        with anyio.fail_after(60):
            assert (await (await runs.run("b")).result()).text == "Done."


def test_trio_is_refused(tmp_path: Path, shop: Shop) -> None:
    """DBOS runs on asyncio only."""

    async def main() -> None:
        async with durable(tmp_path, [], shop, url=f"sqlite:///{tmp_path / 'runs.db'}"):
            pass

    with pytest.raises(ConfigurationError, match="asyncio only"):
        anyio.run(main, backend="trio")


def test_what_a_log_has_is_not_written_again() -> None:
    """Deltas of a complete turn, progress and endings of calls; a call of another turn is new."""
    entries = [
        Entry(0, 0, "RunStarted", {}),
        Entry(1, 0, "TurnStarted", {}),
        Entry(2, 0, "CompletionFinished", {}),
        Entry(3, 0, "ToolCallFinished", {"index": 0}),
        Entry(4, 0, "ContextChanged", {"by": ["a"]}),
    ]
    replay = Replay(entries)
    again = [*entries, Entry(5, 0, "TextDelta", {"text": "x"}), Entry(6, 0, "ContextChanged", {"by": ["b"]})]
    assert [replay.is_known(entry) for entry in again] == [True] * 6 + [False]
    assert not replay.is_known(Entry(7, 0, "TurnStarted", {}))
    assert not replay.is_known(Entry(8, 0, "ToolCallFinished", {"index": 0}))


@pytest.mark.asyncio
async def test_a_conversation_that_another_writer_has_changed_is_told(tmp_path: Path, shop: Shop) -> None:
    """Nothing is merged: the run has failed, and its log has what it did. The same at its beginning."""
    async with durable(tmp_path, [call("slow"), "Done."], shop) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
            stored = await runs.store.load("-/r")
            await runs.store.write("-/r", change(stored, user("Me too!")))
            shop.go.set()
            with pytest.raises(RunError, match="changed by another writer"):
                await run.result()
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        begun = await client.start("Boss", "Hi!", run_id="2")
        await client.store.write("-/2", change(None, user("Me too!")))
        async with durable(tmp_path, [], shop):
            with anyio.fail_after(60), pytest.raises(RunError, match="changed by another writer"):
                await begun.result()


@pytest.mark.asyncio
async def test_a_run_without_a_conversation_survives(tmp_path: Path, shop: Shop) -> None:
    """There is nothing to write but its log."""
    async with durable(tmp_path, [call("look")], shop) as runs:
        await runs.start(NewRun("ann", messages=[user("Hi!")], run_id="r"))
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    shop.go.set()
    async with durable(tmp_path, ["Seen."], shop) as runs:
        with anyio.fail_after(60):
            assert (await (await runs.run("r", user="ann")).result()).text == "Seen."


@pytest.mark.asyncio
async def test_a_database_that_fails_while_the_process_ends_is_left(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No further attempt: the run is where it was."""
    async with durable(tmp_path, [], shop) as runs:
        runs.draining.set()
        with pytest.raises(asyncio.CancelledError):
            await runs.insist(Failing(None, DISK))


@pytest.mark.asyncio
async def test_a_process_without_its_lock_begins_no_run(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until it has the lock again."""
    async with durable(tmp_path, ["Hello."], shop) as runs:
        held = runs._leases._held  # type: ignore[attr-defined]
        lock = held.pop(runs._executor)
        run = await runs.start("Boss", "Hi!", run_id="r")
        await anyio.sleep(0.2)
        assert (await runs.run("r")).record.last == 0
        held[runs._executor] = lock
        with anyio.fail_after(60):
            assert (await run.result()).text == "Hello."
        assert runs._log.take("r") is None
        await runs._executions.execute("r")


@pytest.mark.asyncio
async def test_an_engine_that_has_ended_executes_nothing() -> None:
    """A workflow that begins at the last moment stays in the database."""
    from aswarm.durable._engine import _outside, _register

    with pytest.raises(asyncio.CancelledError):
        await _register().__orig_func("r")
    ended: list[int] = []

    async def work() -> None:
        await anyio.sleep(0.05)
        ended.append(1)
        raise ValueError("late")

    with anyio.move_on_after(0.01):
        await _outside(work)
    assert ended == [1]


@pytest.mark.asyncio
async def test_draining_what_was_never_opened_is_nothing(shop: Shop) -> None:
    """A service may end before it has begun."""
    runs = DurableRuns(
        AsyncSwarm(ScriptedModel([]).client()), agents=shop.agents(), store="sqlite:///runs.db", version="1"
    )
    await runs.drain(0)


@pytest.mark.asyncio
async def test_an_execution_that_has_lost_its_run_writes_nothing(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine says that another process has the run, and so does the log; that one will write its end."""

    async def lost(self: Any, _: Any) -> None:
        with closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
            file.execute("UPDATE aswarm_run SET owner = 'other'")
        raise DBOSWorkflowConflictIDError("r")

    async with durable(tmp_path, ["Hello."], shop, failover_seconds=60) as runs:
        with monkeypatch.context() as patched:
            patched.setattr("aswarm.durable._attempt.RunAttempt._drive", lost)
            run = await runs.start("Boss", "Hi!", run_id="r")
            with anyio.fail_after(60):
                while runs._executions.running or runs._live:
                    await anyio.sleep(0.01)
        assert (await runs.run("r")).record.is_running
        assert await runs._engine.begin_again("r") is None
        with anyio.fail_after(60):
            assert (await run.result()).text == "Hello."
            await runs._executions.close("r", "late")
            assert (await runs.run("r")).record.status == "finished"
    await runs._engine.aclose()  # once more is nothing


@pytest.mark.asyncio
async def test_an_execution_that_has_lost_a_run_of_its_process_begins_again(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale execution has recorded a step meanwhile: no other process would end the run."""
    drive, times = RunAttempt._drive, [0]

    async def lost(self: Any, steps: Any) -> None:
        times[0] += 1
        if times[0] == 1:
            raise DBOSWorkflowConflictIDError("r")
        await drive(self, steps)

    monkeypatch.setattr(RunAttempt, "_drive", lost)
    async with durable(tmp_path, ["Hello."], shop) as runs:
        with anyio.fail_after(60):
            assert (await (await runs.start("Boss", "Hi!")).result()).text == "Hello."


@pytest.mark.asyncio
async def test_the_same_answers_of_two_processes_are_one_run(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes second sees the run of the first one in the middle of its own transaction."""
    async with durable(tmp_path, [call("pay", call_id="p", amount=1), call("slow"), "Paid."], shop) as runs:
        run = await runs.start("Boss", "Pay!", run_id="r")
        await run.wait()
        first = await run.answer({"p": True})
        monkeypatch.setattr(runs._log, "begin", Failing(runs._log.begin, RunActive(first.id)))
        assert (await run.answer({"p": True})).id == first.id
        shop.go.set()
        with anyio.fail_after(60):
            assert (await first.result()).text == "Paid."


@pytest.mark.asyncio
async def test_the_last_run_of_a_conversation_does_not_depend_on_clocks(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the process that answers is an hour behind: the same answers again are the same run all the same."""
    async with durable(tmp_path, [call("pay", call_id="p", amount=1), "Paid."], shop) as runs:
        run = await runs.start("Boss", "Pay!", run_id="r")
        await run.wait()
        monkeypatch.setattr("aswarm.serve._log.now", lambda: now() - 3_600_000)
        first = await run.answer({"p": True})
        assert (await first.result()).text == "Paid."
        assert (await run.answer({"p": True})).id == first.id


@pytest.mark.asyncio
@pytest.mark.parametrize("death", [False, True], ids=["cancelled", "dead too often"])
async def test_a_run_that_no_process_executes_ends_with_what_it_has_recorded(
    tmp_path: Path, shop: Shop, *, death: bool
) -> None:
    """Its calls are in the conversation, so the same answers do not pay again."""
    script = [call("pay", call_id="p", amount=1), call("slow", call_id="s")]
    async with durable(tmp_path, script, shop) as runs:
        await (await runs.start("Boss", "Pay!", run_id="r")).wait()
        answered = await (await runs.run("r")).answer({"p": True})
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    async with durable(tmp_path, [], shop, concurrency=int(death), max_deaths=1 if death else 5) as client:
        run = await client.run(answered.id)
        with anyio.fail_after(60):
            last = await run.last_entry() if death else (await run.cancel(), await run.last_entry())[1]
        assert last.type == ("RunFailed" if death else "RunStopped")
        stored = await client.store.load("-/r")
        assert stored is not None
        told = [message["content"] for message in stored.messages if message["role"] == "tool"]
        assert told == ["paid 1", "cancelled; its outcome is unknown"]
        assert [each.id for each in stored.unknown_calls] == ["s"]
        assert (await (await client.run("r")).answer({"p": True})).id == answered.id
    assert shop.keys["pay"] == [f"{answered.id}:0:0"]


@pytest.mark.asyncio
async def test_a_run_that_is_cancelled_in_its_replay_ends_with_what_it_has_recorded(tmp_path: Path, shop: Shop) -> None:
    """The request is there before another process begins; it replays the steps all the same, and runs nothing."""
    script = [[call("count", call_id="c", number=1), call("look", call_id="l"), call("count", call_id="d", number=2)]]
    async with durable(tmp_path, script, shop) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    with closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
        file.execute("UPDATE aswarm_run SET cancel = 'enough'")
        file.execute("DELETE FROM operation_outputs WHERE function_name IN ('started:d', 'tool:d')")
    async with durable(tmp_path, [], shop) as runs:
        with anyio.fail_after(60):
            response = await (await runs.run("r")).result()
    told = [message["content"] for message in response.messages if message["role"] == "tool"]
    assert told == ["counted 1", "cancelled; its outcome is unknown", "not run: interrupted"]
    assert response.stop == "cancelled"
    assert shop.keys["look"] == ["r:1:1"]


@pytest.mark.asyncio
async def test_a_run_that_kills_its_process_leaves_the_others_alone(tmp_path: Path, shop: Shop) -> None:
    """The last attempts are made one at a time: only the one that is executed counts the death of the process."""
    async with durable(tmp_path, [call("look")] * 3, shop) as runs:
        for name in "abc":
            await runs.start("Boss", "Hi!", run_id=name)
        with anyio.fail_after(60):
            while len(shop.keys.get("look", ())) < 3:
                await anyio.sleep(0.01)
        die(runs)
    shop.keys.clear()
    async with durable(tmp_path, [], shop, max_deaths=2) as runs:
        with anyio.fail_after(60):
            while not shop.keys.get("look"):
                await anyio.sleep(0.01)
        await anyio.sleep(0.2)
        assert len(shop.keys["look"]) == 1
        die(runs)
    shop.go.set()
    async with durable(tmp_path, ["Seen."] * 3, shop, max_deaths=2) as runs:
        with anyio.fail_after(60):
            ends = [(await (await runs.run(name)).last_entry()).type for name in "abc"]
    assert sorted(ends) == ["RunFailed", "RunFinished", "RunFinished"]


@pytest.mark.asyncio
@pytest.mark.parametrize(("number", "name"), [(4, "completion:2"), (5, "started:c"), (5, "started:d")])
async def test_a_step_that_another_process_has_recorded_meanwhile_is_not_passed(
    tmp_path: Path, shop: Shop, number: int, name: str
) -> None:
    """The function does not begin twice, even if the call is the same."""
    async with durable(tmp_path, [call("slow", call_id="s"), call("count", call_id="c", number=1)], shop) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
            with closing(sqlite3.connect(tmp_path / "runs.db")) as file, file:
                step = "INSERT INTO operation_outputs SELECT * FROM operation_outputs WHERE function_id = 2"
                file.execute(step.replace("*", _columns(file, str(number), name)))
                file.execute("UPDATE aswarm_run SET owner = 'other'")
            shop.go.set()
            while runs._executions.running:
                await anyio.sleep(0.01)
    assert "count" not in shop.keys


@pytest.mark.asyncio
async def test_a_process_that_was_taken_for_dead_goes_on(tmp_path: Path, shop: Shop) -> None:
    """It had lost its lock for a moment, and another process has deleted what DBOS keeps of it."""
    async with durable(tmp_path, [call("look")], shop) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    shop.go.set()
    async with durable(tmp_path, ["Seen."], shop, failover_seconds=3600) as runs:
        await runs._engine.forget(runs._executor)
        await runs._close_expired()
        with anyio.fail_after(60):
            assert (await (await runs.run("r")).result()).text == "Seen."


@pytest.mark.asyncio
async def test_a_run_that_is_executed_is_not_closed(tmp_path: Path, shop: Shop) -> None:
    """It ends by itself."""
    async with durable(tmp_path, [call("slow"), "Done."], shop) as runs:
        run = await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
            await runs._executions.close("r", "late")
            await runs._executions.close("none", "late")
            shop.go.set()
            assert (await run.result()).text == "Done."


def _columns(file: sqlite3.Connection, number: str, name: str) -> str:
    """The columns of a step, with this number and name."""
    columns = [column for _, column, *_ in file.execute("PRAGMA table_info(operation_outputs)")]
    changed = {"function_id": number, "function_name": f"'{name}'"}
    return ", ".join(changed.get(column, column) for column in columns)


@pytest.mark.asyncio
async def test_a_run_that_is_to_be_stopped_is_stopped_where_it_begins(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that has put it into the queue does not look."""
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        monkeypatch.setattr(client._log, "asked_to_cancel", dict)
        await client.start("Boss", "Hi!", run_id="r")
        client._log.ask_cancel("r", "enough")
        async with durable(tmp_path, [], shop) as runs:
            with anyio.fail_after(60):
                assert (await (await runs.run("r")).result()).stop == "cancelled"


@pytest.mark.asyncio
async def test_a_process_that_died_before_it_wrote_anything(tmp_path: Path, shop: Shop) -> None:
    """The next execution writes the message too; half a start has no work to be executed."""
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        await client.start("Boss", "Hi!", run_id="r")
        assert client._log.take("r") is not None
        client._log.begin(NewRun("-", "h", [user("Hi!")], run_id="h"), "h", client.limits)
        assert client._log.take("h") is None
    async with durable(tmp_path, ["Hello."], shop) as runs:
        with anyio.fail_after(60):
            assert (await (await runs.run("r")).result()).text == "Hello."
        stored = await runs.store.load("-/r")
    assert stored is not None
    assert [message["content"] for message in stored.messages] == ["Hi!", "Hello."]


@pytest.mark.asyncio
async def test_records_that_cannot_be_replayed_do_not_keep_a_run_from_being_stopped(
    tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its conversation does not get what it has done; a warning says so."""
    async with durable(tmp_path, [call("slow")], shop) as runs:
        await runs.start("Boss", "Hi!", run_id="r")
        with anyio.fail_after(60):
            await shop.began.wait()
        die(runs)
    async with durable(tmp_path, [], shop, concurrency=0) as client:
        monkeypatch.setattr(client._engine, "recorded", Failing(None, DISK))
        with anyio.fail_after(60):
            assert (await (await client.run("r")).cancel()).stop == "cancelled"
    assert "what the run r has recorded is not in its conversation" in caplog.text

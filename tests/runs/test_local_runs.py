"""`LocalRuns` beyond the contract: several on one file, a database that fails, and the end of the process."""

from __future__ import annotations

import copy
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, agent_tool
from aswarm._record import log
from aswarm._record.entries import now
from aswarm._record.log import Ending, LogRow, RunToStart
from aswarm._sql.transactions import single
from aswarm._values.errors import StoreError
from aswarm.conversations import Change, MemoryStore, SQLiteStore, Stored, _statements
from aswarm.runs import (
    AnswersRefused,
    ClientTool,
    Entry,
    Limits,
    LocalRuns,
    NewRun,
    Run,
    RunNotFound,
    RunRecord,
    ShuttingDown,
    _deleting,
    fold,
)
from aswarm.runs._live import LiveRun
from aswarm.runs._shutdown import on_shutdown_signal
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.leaving.run_scenes import settle
from tests.support.runs.kept_runs import Place, Workshop, entries_of, types_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def workshop() -> Workshop:
    return Workshop()


@asynccontextmanager
async def opened(
    folder: Path, script: Any, workshop: Workshop, *, cut: int = 4, **settings: Any
) -> AsyncGenerator[Place]:
    """Runs on the file that all of a test share, as another process would have them."""
    async with (
        SQLiteStore(folder / "chats.sqlite") as store,
        AsyncSwarm(ScriptedModel(script, cut=cut).client()) as swarm,
        LocalRuns(swarm, store=store, agents=workshop.agents(), **settings) as runs,
    ):
        yield Place(runs, store)


def elsewhere(run: Run, place: Place) -> Run:
    """The same run, as the other process knows it."""
    return Run(place.runs, run.record)


async def test_another_process_reads_a_run_live(tmp_path: Path, workshop: Workshop) -> None:
    """Its reader gets the same entries, as they come, and the end."""
    async with opened(tmp_path, [call("slow"), "Done."], workshop) as one, opened(tmp_path, [], workshop) as two:
        run = await one.start()
        await workshop.began.wait()
        found: list[Entry] = []
        async for entry in elsewhere(run, two).entries():
            found.append(entry)
            if entry.type == "ToolCallStarted":
                workshop.go.set()
        assert found == await entries_of(run)


async def test_another_process_stops_a_run(tmp_path: Path, workshop: Workshop) -> None:
    """It asks the owner, and returns once the run has ended."""
    async with opened(tmp_path, [call("slow")], workshop) as one, opened(tmp_path, [], workshop) as two:
        run = await one.start()
        await workshop.began.wait()
        record = await elsewhere(run, two).cancel("enough")
        assert (record.status, record.reason) == ("stopped", "enough")
        assert (await run.last_entry()).fields["reason"] == "enough"


@pytest.mark.slow
async def test_a_reader_in_another_process_counts(tmp_path: Path, workshop: Workshop) -> None:
    """The owner does not stop a run that is read elsewhere, and stops it once that reader has gone."""
    async with opened(tmp_path, [call("slow")], workshop) as one, opened(tmp_path, [], workshop) as two:
        run = await one.start(on_disconnect=0.5)
        with elsewhere(run, two)._reading(), elsewhere(run, two)._reading():
            await anyio.sleep(2.5)
            assert (await one.runs.get(run.id, user="ann")).is_running
        assert (await run.last_entry()).fields["reason"] == "no_reader"
        assert await one.store._database.run(log.last_read, run.id) > 0


async def test_a_reader_far_behind_reads_the_log(tmp_path: Path, workshop: Workshop) -> None:
    """A live run keeps only its newest entries in memory; a reader gets the older ones from the file."""
    script = [ScriptedAnswer("x" * 2_000, [call("slow")]), "Done."]
    async with opened(tmp_path, script, workshop, cut=2) as place:
        run = await place.start()
        await workshop.began.wait()
        live = place.runs._live[run.id]  # type: ignore[attr-defined]
        while live.above(-1) is not None:
            await anyio.sleep(0.01)
        workshop.go.set()
        entries = await entries_of(run)
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert len(entries) > 1_000


async def test_readers_that_come_and_go_leave_no_task(tmp_path: Path, workshop: Workshop) -> None:
    """One task waits for the next reader, however many have gone; none when a reader is there, or after the end."""

    def waiting() -> int:
        return sum("_cancel_unread" in (task.name or "") for task in anyio.get_running_tasks())

    async with opened(tmp_path, [call("slow"), "Done."], workshop) as place:
        run = await place.start(on_disconnect=3600)
        await workshop.began.wait()
        for _ in range(5):
            with run._reading():
                await settle()
                assert waiting() == 0
            await settle()
            assert waiting() == 1
        with run._reading():
            workshop.go.set()
            await run.last_entry()
        await settle()
        assert waiting() == 0


async def test_a_run_that_ends_without_a_reader_leaves_no_task(tmp_path: Path, workshop: Workshop) -> None:
    """What waited for a reader ends with the run."""
    async with opened(tmp_path, [call("slow"), "Done."], workshop) as place:
        run = await place.start(on_disconnect=3600)
        await workshop.began.wait()
        workshop.go.set()
        await run.last_entry()
        await settle()
        assert not [task for task in anyio.get_running_tasks() if "_cancel_unread" in (task.name or "")]


async def test_old_runs_are_forgotten(tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their age, and by their number; a run that goes on is not."""
    monkeypatch.setattr("aswarm.runs._logged_runs._FORGET_EVERY", 0.0)
    limits = Limits(kept_runs=1)
    async with opened(tmp_path, ["1", "2", call("slow")], workshop, failover_seconds=0.06, limits=limits) as place:
        runs = []
        for name in ("a", "b"):
            runs.append(await place.start(conversation=name))
            await runs[-1].last_entry()
        active = await place.start(conversation="c")
        while len(await place.runs.list(user="ann")) > 2:
            await anyio.sleep(0.01)
        assert {record.id for record in await place.runs.list(user="ann")} == {runs[1].id, active.id}
        with pytest.raises(RunNotFound):
            await runs[0].read()


async def test_leaving_the_block_stops_runs_and_keeps_them(workshop: Workshop) -> None:
    """What its body raises leaves as itself, and not in a group."""
    async with MemoryStore() as store, AsyncSwarm(ScriptedModel([call("slow")]).client()) as swarm:

        async def leave() -> None:
            async with LocalRuns(swarm, store=store, agents=workshop.agents()) as runs:
                await Place(runs, store).start()
                await workshop.began.wait()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await leave()
        stored = await store.load("ann/c")
        assert stored is not None
        assert "unknown" in stored.messages[-1]["content"]


async def test_runs_must_be_open(workshop: Workshop) -> None:
    """Before the block, and a second time in it, is an error of the caller."""
    async with AsyncSwarm(ScriptedModel([]).client()) as swarm:
        runs = LocalRuns(swarm, agents=workshop.agents())
        new = NewRun("ann", "c", [{"role": "user", "content": "Hi!"}])
        with pytest.raises(RuntimeError, match="async with"):
            await runs.start(new)
        async with runs:
            with pytest.raises(RuntimeError, match="already open"):
                await runs.__aenter__()


async def test_agents_have_names_of_their_own() -> None:
    """None, two of one name, and a mapping with other names are refused; one alone and a mapping by name are taken."""
    async with AsyncSwarm(ScriptedModel([]).client()) as swarm:
        for agents in ([], [Agent(name="A"), Agent(name="A")]):
            with pytest.raises(ConfigurationError, match="its own name"):
                LocalRuns(swarm, agents=agents)
        with pytest.raises(ConfigurationError, match="'x' for the agent 'A'"):
            LocalRuns(swarm, agents={"x": Agent(name="A")})
        with pytest.raises(ConfigurationError, match="limits must be an instance of Limits, not dict"):
            LocalRuns(swarm, agents=Agent(), limits={})  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="swarm must be an instance of AsyncSwarm, not Agent"):
            LocalRuns(Agent(), agents=Agent())  # type: ignore[arg-type]
        for agents in (Agent(name="A"), {"A": Agent(name="A")}):
            assert list(LocalRuns(swarm, agents=agents)._factory.agents) == ["A"]


# --- a database that fails --------------------------------------------------------------------------------------------


def failing(function: Any, failures: list[str]) -> Any:
    """Return a transaction that fails as often as `failures` says, as a full disk lets it fail."""

    def transaction(*arguments: Any, **keywords: Any) -> Any:
        if failures:
            failures.pop()
            raise sqlite3.OperationalError("disk I/O error")
        return function(*arguments, **keywords)

    return transaction


async def test_a_log_that_fails_for_a_moment_loses_nothing(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was not written is written with the next attempt: in the middle of a run, before a call, and at the end."""
    monkeypatch.setattr("aswarm.runs._logged_runs._SECONDS_AFTER_FAILURE", 0.01)
    appends, ends = [""] * 3, [""] * 3
    monkeypatch.setattr(log, "append", failing(log.append, appends))
    monkeypatch.setattr(log, "end", failing(log.end, ends))
    async with opened(tmp_path, [call("slow"), "Done."], workshop) as place:
        run = await place.start()
        await workshop.began.wait()
        assert not appends
        workshop.go.set()
        live = await entries_of(run)
        assert not ends
        assert live == await entries_of(run)
        assert live[-1].type == "RunFinished"
        assert (await place.history())[-1]["content"] == "Done."
    assert "another attempt follows" in caplog.text


async def test_a_run_whose_end_cannot_be_written_is_ended_by_the_next_process(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process ends all the same; the next one gives the run its one end, with everything that is recorded."""
    monkeypatch.setattr("aswarm.runs._logged_runs._SECONDS_AFTER_FAILURE", 0.01)
    with monkeypatch.context() as broken:
        async with opened(tmp_path, ["Done."], workshop) as place:
            failures = [""] * 1000
            broken.setattr(log, "end", failing(log.end, failures))
            run = await place.start()
            while len(failures) == 1000:
                await anyio.sleep(0.01)
    assert "cannot be recorded" in caplog.text
    async with opened(tmp_path, [], workshop) as place:
        found = await entries_of(elsewhere(run, place))
        assert found[-1].type == "RunFinished", types_of(found)  # all of it is recorded
        assert fold(found).messages == await place.history()
        assert (await place.history())[-1]["content"] == "Done."


async def test_failures_of_the_background_end_nothing(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are logged; afterwards another process stops one run, and the other one ends without a reader."""
    monkeypatch.setattr("aswarm.runs._changes._SECONDS_AFTER_FAILURE", 0.01)
    monkeypatch.setattr("aswarm.runs._readers._TOUCH_EVERY", 0.01)
    monkeypatch.setattr("aswarm.runs._logged_runs._FORGET_EVERY", 0.0)
    failures = {name: [""] * 4 for name in ("cancel_requests", "last_read", "owners", "surplus", "touch")}
    script = [call("slow"), call("slow")]
    async with (
        opened(tmp_path, script, workshop, failover_seconds=0.02) as one,
        opened(tmp_path, [], workshop) as two,
    ):
        for name, each in failures.items():
            module = _deleting if name == "surplus" else log
            monkeypatch.setattr(module, name, failing(getattr(module, name), each))
        run, unread = await one.start(), await one.start(conversation="d", on_disconnect=0.01)
        one.runs._readers._foreign["other"] = 1  # type: ignore[attr-defined]
        with anyio.fail_after(120):
            assert (await elsewhere(run, two).cancel("enough")).reason == "enough"
            assert (await unread.last_entry()).fields["reason"] == "no_reader"
            while any(failures.values()):
                await anyio.sleep(0.01)
    for text in ("cannot be read; another", "readers of a run", "readers of runs", "old runs", "other processes"):
        assert text in caplog.text


async def test_an_end_that_cannot_be_made_ends_only_its_run(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run fails with that error; the others go on."""
    async with opened(tmp_path, ["Here.", call("slow"), "Done."], workshop) as place:
        with monkeypatch.context() as broken:
            broken.setattr("aswarm.runs._prepared.PreparedRun.endings", lambda *_: 1 / 0)
            with anyio.fail_after(60):
                last = await (await place.start(conversation="broken")).last_entry()
        assert (last.type, last.fields["error"]["type"]) == ("RunFailed", "ZeroDivisionError")
        run = await place.start()
        workshop.go.set()
        assert (await run.last_entry()).type == "RunFinished"
    assert "cannot be recorded" in caplog.text


async def test_a_store_that_fails_starts_nothing(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error reaches the caller as a StoreError, and the conversation is free."""
    async with (
        AsyncSwarm(ScriptedModel(["Here."]).client()) as swarm,
        LocalRuns(swarm, agents=workshop.agents()) as runs,
    ):
        place = Place(runs, runs.store)
        for function in ("load", "write"):
            with monkeypatch.context() as broken:
                broken.setattr(_statements, function, failing(getattr(_statements, function), [""] * 9))
                with pytest.raises(StoreError):
                    await place.start()
            assert await runs.list(user="ann") == []
        assert (await (await place.start()).last_entry()).type == "RunFinished"


async def test_a_store_that_fails_is_no_request_that_was_sent_twice(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answers again get the known run only if the calls are answered; an error of the store is raised."""
    async with (
        AsyncSwarm(ScriptedModel([call("erase", call_id="e", name="draft"), "It is gone."]).client()) as swarm,
        LocalRuns(swarm, agents=workshop.agents()) as runs,
    ):
        asked = await Place(runs, runs.store).start("Erase the draft.")
        await asked.last_entry()
        answered = await asked.answer({"e": True})
        await answered.last_entry()
        with monkeypatch.context() as broken:
            broken.setattr(_statements, "load", failing(_statements.load, [""] * 9))
            with pytest.raises(StoreError):
                await asked.answer({"e": True})
        assert (await asked.answer({"e": True})).id == answered.id


# --- other writers of the conversation --------------------------------------------------------------------------------


def overtaken(monkeypatch: pytest.MonkeyPatch, change: Callable[[Stored | None], Change]) -> None:
    """Let another program change the conversation each time after it was loaded, once."""
    load, changes = _statements.load, [change]

    def loaded(key: str, until: int | None = None) -> Any:
        stored = yield from load(key, until)
        if changes:
            yield from _statements.write(key, changes.pop()(copy.deepcopy(stored)), 1.0)
        return stored

    monkeypatch.setattr(_statements, "load", loaded)


async def test_an_approval_is_for_the_calls_that_its_user_saw(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer comes between the look at the open calls and the run: the answer is refused, and no call runs."""

    def everything(stored: Stored | None) -> Change:
        assert stored is not None
        stored.messages[-1]["tool_calls"][0]["function"]["arguments"] = '{"name": "everything"}'
        return Change(stored.revision, "other", 0, stored.messages, stored.agent, {})

    script = [call("erase", call_id="e", name="draft"), "It is gone."]
    async with AsyncSwarm(ScriptedModel(script).client()) as swarm, LocalRuns(swarm, agents=workshop.agents()) as runs:
        asked = await Place(runs, runs.store).start("Erase the draft.")
        await asked.last_entry()
        overtaken(monkeypatch, everything)
        with pytest.raises(AnswersRefused, match="another program has just changed the conversation"):
            await asked.answer({"e": True})
        assert workshop.erased == []
        assert len(await runs.list(user="ann")) == 1


async def test_a_conversation_that_changes_while_a_run_starts(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer was there between the load and the first write: the run starts after what that one has written."""
    first = Change("", "1", 0, [{"role": "user", "content": "First."}], "Clerk", {})
    async with (
        AsyncSwarm(ScriptedModel(["Yes."]).client()) as swarm,
        LocalRuns(swarm, agents=workshop.agents()) as runs,
    ):
        place = Place(runs, runs.store)
        overtaken(monkeypatch, lambda _: first)
        await (await place.start()).last_entry()
        assert [message["content"] for message in await place.history()] == ["First.", "Hi!", "Yes."]
        assert (await place.history())[2]["sender"] == "Clerk"


async def test_a_conversation_that_changes_while_a_run_goes_on(workshop: Workshop) -> None:
    """The run fails with Conflict, and its log has its answer; the conversation is as the other writer left it."""
    async with (
        AsyncSwarm(ScriptedModel([call("slow"), "Done."]).client()) as swarm,
        LocalRuns(swarm, agents=workshop.agents()) as runs,
    ):
        place = Place(runs, runs.store)
        run = await place.start()
        await workshop.began.wait()
        stored = await place.store.load("ann/c")
        assert stored is not None
        other = [{"role": "user", "content": "Other."}]
        await place.store.write("ann/c", Change(stored.revision, "other", 0, other, "Boss", {}))
        workshop.go.set()
        live = await entries_of(run)
        assert (live[-1].type, live[-1].fields["error"]["type"]) == ("RunFailed", "Conflict")
        assert live[-1].response["text"] == "Done."
        assert [each.to_json() for each in await entries_of(run)] == [each.to_json() for each in live]
        assert await place.history() == other


async def test_draining_waits_for_a_run_that_is_about_to_start(tmp_path: Path, workshop: Workshop) -> None:
    """Another program holds the file meanwhile. The run is recorded and stopped, or refused; none starts later."""
    async with opened(tmp_path, ["Here."], workshop) as place:
        assert isinstance(place.runs, LocalRuns)
        with sqlite3.connect(tmp_path / "chats.sqlite", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            async with anyio.create_task_group() as group:
                group.start_soon(place.start)
                while not place.runs._starts:
                    await anyio.sleep(0.01)
                group.start_soon(place.runs.drain, 0)
                await anyio.sleep(0.1)
                other.execute("ROLLBACK")
        other.close()
        (record,) = await place.runs.list(user="ann")
        assert (record.status, record.reason) == ("stopped", "shutdown")
        with pytest.raises(ShuttingDown):
            await place.start()


# --- the log ----------------------------------------------------------------------------------------------------------


async def test_what_was_deleted_is_not_in_the_file(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is overwritten, also by a SQLite that by default does not do so."""
    connect = sqlite3.connect

    def careless(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **settings)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", careless)
    async with opened(tmp_path, ["s3cret " * 1000], workshop) as place:
        await (await place.start()).last_entry()
        await place.runs.forget("c", user="ann")
        await place.store.delete("ann/c")
    assert b"s3cret" not in (tmp_path / "chats.sqlite").read_bytes()


class Log:
    """The transactions of the log on a database in memory."""

    def __init__(self) -> None:
        self.database = MemoryStore()._database

    async def insert(self, *run_ids: str) -> None:
        for run_id in run_ids:
            await self.database.run(log.insert, RunToStart(run_id, "ann", "", owner="me#1"), 1, LogRow(0, 0, b"{}"))

    def __call__(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        return self.database.run(function, *arguments, **keywords)


async def test_only_the_last_attempt_writes() -> None:
    """Entries and the end of an attempt are refused once another one has started, and after the end."""
    it, row = Log(), LogRow(1, 1, b"1")
    await it.insert("r")
    assert await it(log.append, "r", 1, row)
    taken = await it(log.take, "r", "other", "1")
    assert (taken.attempt, taken.deaths) == (2, 1)
    assert (await it(log.take, "r", "other", "1")).attempt == 2  # the same transaction again
    late = LogRow(2, 2, b"late")
    assert not await it(log.append, "r", 1, late)
    assert not await it(log.end, "r", 1, late, Ending("finished"), now())
    assert await it(log.end, "r", 2, LogRow(1_000_000, 1_000_000, b"end"), Ending("stopped", "process_died"), now())
    assert await it(log.end, "r", 2, LogRow(1_000_000, 1_000_000, b"end"), Ending("stopped", "process_died"), now())
    assert not await it(log.append, "r", 2, late)
    rows, is_active = await it(log.read, "r", 0)
    assert ([each.data for each in rows], is_active) == ([b"1", b"end"], False)


async def test_a_record_costs_the_same_however_long_the_log_is() -> None:
    """The number of its last entry is looked up, not searched for."""
    it, steps = Log(), list[None]()
    await it.insert("1")
    for number in range(1, 2_000):
        await it(log.append, "1", 1, LogRow(number, number, b"{}"))
    await it(single_step, lambda connection: connection.set_progress_handler(lambda: steps.append(None), 100))
    assert (await it(log.find, "1", "ann")).last == 1_999
    assert len(steps) < 10


async def test_the_end_of_a_log_costs_the_same_however_long_the_log_is() -> None:
    """The rows that have only deltas are not read, neither for the last entry nor for the messages of the response."""
    it, steps = Log(), list[None]()
    await it.insert("1")
    for number in range(1, 2_000):
        delta = b'{"seq":%d,"at":0,"type":"TextDelta","text":"\\n{\\"type\\":\\"TurnStarted\\"}"}' % number
        await it(log.append, "1", 1, LogRow(number, number, delta))
    end = LogRow(2_000, 2_001, b'{"seq":2000,"at":0,"type":"TextDelta"}\n{"seq":2001,"at":0,"type":"RunFinished"}')
    await it(log.end, "1", 1, end, Ending("finished"), now())
    await it(single_step, lambda connection: connection.set_progress_handler(lambda: steps.append(None), 100))
    assert [row.first for row in await it(log.facts, "1")] == [0, 2_000]
    for after in (1_999, 2_000):
        rows, _ = await it(log.read, "1", after)
        assert [row.first for row in rows] == [2_000]
    assert len(steps) < 10


async def test_the_newest_runs_of_a_user_are_found_by_an_index() -> None:
    """The database sorts nothing, and reads no other run."""
    it = Log()
    for conversation in (None, "c"):
        statement, parameters = next(log.of_user("ann", conversation, 100))
        plan = await it(single, f"EXPLAIN QUERY PLAN {statement}", *parameters)
        assert any("USING INDEX aswarm_run_" in step[-1] for step in plan)
        assert not [step for step in plan if "TEMP B-TREE" in step[-1] or step[-1].startswith("SCAN")]


def single_step(function: Any) -> Any:
    """Give the connection of SQLite to a function."""
    yield function, ()


async def test_a_log_is_read_in_pieces() -> None:
    """Of so many bytes; a reader gets at least one row, however large it is."""
    it = Log()
    await it.insert("1")
    for number in range(5):
        await it(log.append, "1", 1, LogRow(2 * number + 1, 2 * number + 2, b"x" * 200_000))
    for after, firsts in ((0, [1, 3]), (4, [5, 7]), (7, [7, 9]), (10, [])):
        rows, is_active = await it(log.read, "1", after)
        assert ([row.first for row in rows], is_active) == (firsts, True)


async def test_the_kept_logs_have_a_size() -> None:
    """The newest ended runs stay that fit; a run that goes on is not deleted."""
    it = Log()
    await it.insert(*"12345")
    for name in "2345":
        await it(log.end, name, 1, LogRow(1, 1, b"x" * 98), Ending("finished"), now())

    async def kept(**limits: float) -> set[str]:
        found = await it(_deleting.surplus, Limits(**limits))
        await it(_deleting.delete, found.old)
        return {row.id for row in await it(log.of_user, "ann", None, 9)}

    assert await kept() == {"1", "2", "3", "4", "5"}
    assert await kept(kept_seconds=60, kept_runs=10, kept_bytes=250) == {"1", "4", "5"}
    assert await kept(kept_runs=1) == {"1", "5"}
    assert await kept(kept_seconds=-1) == {"1"}


async def test_the_last_entry_is_written_once() -> None:
    """It is in the log before readers see it, so that nothing is left to write."""
    live = LiveRun(
        RunRecord(id="r", user="ann", conversation=None, agent=None, status="running", started_ms=0),
        1,
        MemoryStore()._database,
    )
    live.add_first(Entry(0, 0, "RunStarted", {}))
    last = Entry(1, 0, "RunStopped", {"reason": "x"})
    row = live.unwritten(last)
    assert row is not None
    assert (row.first, row.last) == (1, 1)
    live.add_last(last)
    assert live.unwritten() is None


async def test_the_first_reason_to_stop_a_run_counts() -> None:
    """A later one changes nothing."""
    live = LiveRun(
        RunRecord(id="r", user="ann", conversation=None, agent=None, status="running", started_ms=0),
        1,
        MemoryStore()._database,
    )
    live.cancel("enough")
    live.cancel("more than enough")
    assert live.reason == "enough"


async def test_reading_a_log_in_memory_lets_other_tasks_run(workshop: Workshop) -> None:
    """Each read has a checkpoint, so it can be cancelled."""
    async with (
        MemoryStore() as store,
        AsyncSwarm(ScriptedModel(["Here."]).client()) as swarm,
        LocalRuns(swarm, store=store, agents=workshop.agents()) as runs,
    ):
        run = await Place(runs, store).start()
        await run.last_entry()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run.read()
        assert scope.cancelled_caught


async def test_a_log_that_cannot_be_written_has_a_limit_too(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for the disk counts: the run is stopped before it fills the memory."""
    limits = Limits(log_bytes=20_000)
    async with opened(tmp_path, [ScriptedAnswer("x" * 20_000)], workshop, cut=4, limits=limits) as place:
        monkeypatch.setattr("aswarm.runs._live._WITHIN", 60.0)
        last = await (await place.start()).last_entry()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "log_too_long")


async def test_what_a_stopped_run_has_changed_is_in_its_log() -> None:
    """The context variables that a function had set when it was cut come before the last entry."""
    began = anyio.Event()

    async def note(context_variables: dict[str, Any]) -> str:
        """Note something, and take a while."""
        context_variables["noted"] = True
        began.set()
        await anyio.sleep(60)
        return "noted"

    model = ScriptedModel([call("note")])
    async with AsyncSwarm(model.client()) as swarm, LocalRuns(swarm, agents=Agent(functions=[note])) as runs:
        run = Run(runs, await runs.start(NewRun("ann", "c", [{"role": "user", "content": "Hi!"}])))
        await began.wait()
        await run.cancel()
        entries = await entries_of(run)
    assert types_of(entries)[-2:] == ["ContextChanged", "RunStopped"]
    assert entries[-2].fields["changes"] == {"noted": True}


async def test_the_tools_of_a_client_are_not_offered_to_a_run_inside_a_function() -> None:
    """An agent as a tool has its own; the client could not know what its calls are about."""
    inner = Agent(name="Inner", instructions="inner")
    outer = Agent(name="Outer", instructions="outer", functions=[agent_tool(inner)])
    model = ScriptedModel([call("inner", request="Look"), "Seen.", "Done."])
    async with AsyncSwarm(model.client()) as swarm, LocalRuns(swarm, agents=outer) as runs:
        new = NewRun(
            "ann",
            "c",
            [{"role": "user", "content": "Hi!"}],
            tools=[ClientTool(name="open_page", description="", parameters={})],
        )
        assert (await Run(runs, await runs.start(new)).last_entry()).type == "RunFinished"
    offered = [[each["function"]["name"] for each in asked.body.get("tools", ())] for asked in model.requests]
    assert offered == [["inner", "open_page"], [], ["inner", "open_page"]]


async def test_a_call_of_the_client_and_a_later_handoff() -> None:
    """The client is asked first: a function that hands off would close its call, which the client may have made already."""

    clerk = Agent(name="Clerk")

    async def leave() -> Agent:
        return clerk

    model = ScriptedModel([[call("open_page"), call("leave")], "Done."])
    agent = Agent(name="A", functions=[leave])
    async with AsyncSwarm(model.client()) as swarm, LocalRuns(swarm, agents=[agent, clerk]) as runs:
        new = NewRun(
            "ann",
            "c",
            [{"role": "user", "content": "Hi!"}],
            tools=[ClientTool(name="open_page", description="", parameters={})],
        )
        ending = await Run(runs, await runs.start(new)).last_entry()
    assert ending.response["stop"] == "waiting"
    assert [each["name"] for each in ending.response["waiting"]] == ["open_page", "leave"]


# --- signals ----------------------------------------------------------------------------------------------------------


async def test_a_signal_is_heard_in_the_main_thread_only() -> None:
    """A service in another thread has a server that tells it in another way."""
    called: list[bool] = []

    def in_thread() -> None:
        with on_shutdown_signal(lambda: called.append(True)):
            pass

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert not called


async def test_a_signal_is_passed_on_to_the_handler_before() -> None:
    """Both are called; afterwards the old handler is there, unless the server has set another one since."""
    import signal

    heard: list[str] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("server"))
    try:
        mine = signal.getsignal(signal.SIGTERM)
        with on_shutdown_signal(lambda: heard.append("service")):
            signal.raise_signal(signal.SIGTERM)
            while len(heard) < 2:
                await anyio.sleep(0.001)
        assert sorted(heard) == ["server", "service"]
        assert signal.getsignal(signal.SIGTERM) is mine
        with on_shutdown_signal(lambda: None):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_runs_can_be_made_where_no_event_loop_runs() -> None:
    """A module has a service as `app`, and the server may import the module before its loop runs."""
    assert LocalRuns(AsyncSwarm(), store=MemoryStore(), agents=Agent())._draining.is_set is False


@pytest.mark.anyio
async def test_a_block_that_is_cancelled_closes_everything(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing is not cut, and what an opening has opened is closed."""
    async with AsyncSwarm(ScriptedModel([]).client()) as swarm:
        runs = LocalRuns(swarm, store=tmp_path / "chats.sqlite", agents=workshop.agents())
        database: Any = runs.store._database
        with anyio.CancelScope() as scope:
            async with runs:
                assert database.is_open
                scope.cancel()
        assert (runs.is_open, database.is_open) == (False, False)

        async def cancelled() -> None:
            assert database.is_open
            scope.cancel()
            await anyio.sleep(60)

        monkeypatch.setattr(runs, "_take_over", cancelled)
        with anyio.CancelScope() as scope:
            await runs.__aenter__()
        assert scope.cancelled_caught
        assert (runs.is_open, database.is_open) == (False, False)


@pytest.mark.anyio
async def test_the_end_is_found_behind_numbers_that_the_log_never_got() -> None:
    """An execution that has lost its run has shown them; where there is no end at all, the log has been deleted."""
    end = Entry(1, 0, "RunStopped", {"reason": "cancelled"})

    class Lost:
        lasts = [10_001, 1, 7, 7]

        async def get(self, run_id: str, *, user: str) -> RunRecord:
            return RunRecord(
                id=run_id,
                user=user,
                conversation=None,
                agent=None,
                status="stopped",
                started_ms=0,
                last=self.lasts.pop(0),
            )

        async def read(self, run_id: str, after: int, *, user: str) -> list[Entry]:
            return [end] if after == 0 else []

    runs: Any = Lost()
    run = Run(runs, RunRecord(id="r", user="ann", conversation=None, agent=None, status="running", started_ms=0))
    assert await run.last_entry() == end
    with pytest.raises(RunNotFound):
        await run.last_entry()


async def test_a_url_is_no_file() -> None:
    """A URL as `store` would be the name of a new SQLite file. The error does not repeat its password."""
    with pytest.raises(ConfigurationError, match=r"not a URL with 'postgresql'; open a PostgresStore") as caught:
        LocalRuns(agents=Agent(), store="postgresql://ann:s3cret@host/runs")
    assert "s3cret" not in str(caught.value)


async def test_a_first_guess_gets_an_answer() -> None:
    """A text is one message of the user; `start` names what it needs."""
    assert NewRun("ann", messages="Hi!").digest == NewRun("ann", messages=[{"role": "user", "content": "Hi!"}]).digest
    async with AsyncSwarm(ScriptedModel(["Hello."]).client()) as swarm, LocalRuns(swarm, agents=Agent()) as runs:
        with pytest.raises(ConfigurationError, match=r"start\(\) needs a NewRun, such as NewRun\(.*\), not str"):
            await runs.start("Hi!")  # type: ignore[arg-type]
        run = await runs.get_run((await runs.start(NewRun("ann", "c", "Hi!"))).id, user="ann")
        assert (await run.result()).text == "Hello."

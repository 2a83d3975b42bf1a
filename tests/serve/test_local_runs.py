"""`LocalRuns` beyond the contract: several on one file, leases, a log that fails, and the end of the process."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from kept_runs import Place, Workshop, entries_of, types_of
from run_scenes import settle

from aswarm import Agent, AsyncSwarm, ConfigurationError, RunError, agent_tool
from aswarm.conversations import Change, Conversation, MemoryStore, SQLiteStore
from aswarm.serve import (
    CallAnswer,
    ClientTool,
    Entry,
    Limits,
    LocalRuns,
    NewRun,
    Run,
    RunNotFound,
    RunRecord,
    ShuttingDown,
)
from aswarm.serve._entries import now
from aswarm.serve._live import LiveRun
from aswarm.serve._log import Ending, LogRow, RunLog, _is_alive
from aswarm.serve._shutdown import ShieldedExitStack, on_shutdown_signal
from aswarm.testing import Answer, ScriptedModel, call

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
        LocalRuns(swarm, store, agents=workshop.agents(), **settings) as runs,
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
        last = await elsewhere(run, two).cancel("enough")
        assert (last.type, last.fields["reason"]) == ("RunStopped", "enough")
        assert await run.result() == last


@pytest.mark.slow
async def test_a_reader_in_another_process_counts(tmp_path: Path, workshop: Workshop) -> None:
    """The owner does not stop a run that is read elsewhere, and stops it once that reader has gone."""
    async with opened(tmp_path, [call("slow")], workshop) as one, opened(tmp_path, [], workshop) as two:
        run = await one.start(on_disconnect=0.5)
        with elsewhere(run, two).reading(), elsewhere(run, two).reading():
            await anyio.sleep(2.5)
            assert (await one.runs.get(run.id, user="ann")).is_running
        assert (await run.result()).fields["reason"] == "no_reader"
    with opened_log(tmp_path) as log:
        assert log.last_read(run.id) > 0


async def test_a_run_whose_lease_has_run_out_is_closed(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process closes it; its own process writes no more, stops it, and its readers see the same end."""
    async with opened(tmp_path, [call("slow"), "Done."], workshop, silent_seconds=1) as one:
        monkeypatch.setattr(one.runs._log, "renew", lambda run_ids: None)  # type: ignore[attr-defined]
        monkeypatch.setattr(one.runs._log, "take_expired", list)  # type: ignore[attr-defined]
        run = await one.start()
        await workshop.began.wait()
        async with opened(tmp_path, ["Here."], workshop, silent_seconds=1) as two:
            last = await elsewhere(run, two).result()
            assert (last.type, last.fields["reason"]) == ("RunStopped", "process_died")
            assert last.seq > 1_000
            workshop.go.set()
            assert await run.result() == last
            assert types_of(await entries_of(run))[-1] == "RunStopped"


async def test_a_message_closes_the_run_of_a_dead_process(tmp_path: Path, workshop: Workshop) -> None:
    """It need not wait for the lease: the process that owns the run is gone."""
    new = NewRun("ann", "c", [{"role": "user", "content": "Hi!"}])
    async with opened(tmp_path, ["Here."], workshop) as place:
        with opened_log(tmp_path) as log:
            log.owner = f"{log.owner.rsplit('/', 2)[0]}/{2**22 + 1}/x"  # above every process id
            log.begin(new, "dead", Limits())
        await (await place.start()).result()
        assert (await place.runs.get("dead", user="ann")).reason == "process_died"


async def test_a_message_in_the_log_is_in_the_conversation_after_a_crash(tmp_path: Path, workshop: Workshop) -> None:
    """A process may die after it has recorded a run, and before the conversation has its message. The next one writes it."""
    async with opened(tmp_path, [call("erase", name="x"), "Here."], workshop) as place:
        await died_after_entry_0(place, tmp_path, "new", context_variables={"name": "Ann"})
        await (await place.start("First.", conversation="old")).result()
        await died_after_entry_0(place, tmp_path, "old")
    async with opened(tmp_path, [], workshop) as place:
        assert await place.history(conversation="new") == [{"role": "user", "content": "Hi!"}]
        stored = await place.store.load("ann/new")
        assert stored is not None
        assert (stored.agent, stored.context_variables) == ("Boss", {"name": "Ann"})
        roles = [message["role"] for message in await place.history(conversation="old")]
        assert roles == ["user", "assistant", "tool", "user"]  # the open call is closed, as the run would have done
        assert {record.reason for record in await place.runs.list(user="ann")} == {"process_died", "waiting"}


async def test_a_message_that_the_conversation_has_is_not_added(tmp_path: Path, workshop: Workshop) -> None:
    """Nor one to a conversation that has changed since, or was deleted, or to a run that has none."""
    script = ["One.", "Two.", "Three.", "Four."]
    async with opened(tmp_path, script, workshop) as place:
        for name in ("same", "other", "deleted"):
            await (await place.start("First.", conversation=name)).result()
            await died_after_entry_0(place, tmp_path, name)
        await died_after_entry_0(place, tmp_path, None)
        async with AsyncSwarm(ScriptedModel(["Yes."]).client()) as swarm:
            for name, text in (("same", "Hi!"), ("other", "Ho!")):
                chat = Conversation(place.store, f"ann/{name}", swarm, agent=workshop.agents()[0])
                await chat.replace([*(await chat.load()).messages, {"role": "user", "content": text}])
        await place.store.delete("ann/deleted")
    async with opened(tmp_path, [], workshop) as place:
        for name, text in (("same", "Hi!"), ("other", "Ho!")):
            assert [message["content"] for message in await place.history(conversation=name)][2:] == [text]
        assert await place.store.load("ann/deleted") is None


async def test_a_run_whose_message_cannot_be_stored_is_closed_later(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log still has the message, so the next attempt can store it."""
    async with opened(tmp_path, [], workshop) as place:
        await died_after_entry_0(place, tmp_path, "c")

    async def fail(*_: object) -> None:
        raise RunError("the store cannot be reached")

    with monkeypatch.context() as patch:
        patch.setattr(SQLiteStore, "write", fail)
        async with opened(tmp_path, [], workshop, silent_seconds=0) as place:
            assert [record.is_running for record in await place.runs.list(user="ann")] == [True]
    assert "cannot be stored" in caplog.text
    async with opened(tmp_path, [], workshop) as place:
        assert [record.is_running for record in await place.runs.list(user="ann")] == [False]
        assert [message["content"] for message in await place.history()] == ["Hi!"]


async def died_after_entry_0(place: Place, folder: Path, conversation: str | None, **more: Any) -> None:
    """Leave the log as a process does that dies before it has written the message of a run to the conversation."""
    assert isinstance(place.runs, LocalRuns)
    new = NewRun("ann", conversation, [{"role": "user", "content": "Hi!"}], **more)
    driver = place.runs.drivers.driver(new)
    first = await driver.load(None)
    with opened_log(folder) as log:
        log.owner = f"{log.owner.rsplit('/', 2)[0]}/{2**22 + 1}/x"  # above every process id
        log.begin(new, driver.run_id, Limits())
        log.append({driver.run_id: LogRow(0, 0, first.to_json())}, {})


async def test_a_reader_far_behind_reads_the_log(tmp_path: Path, workshop: Workshop) -> None:
    """A live run keeps only its newest entries in memory; a reader gets the older ones from the file."""
    script = [Answer("x" * 2_000, [call("slow")]), "Done."]
    async with opened(tmp_path, script, workshop, cut=2) as place:
        run = await place.start()
        await workshop.began.wait()
        live = place.runs._live[run.id]  # type: ignore[attr-defined]
        while live.has(-1):
            await anyio.sleep(0.01)
        workshop.go.set()
        entries = await entries_of(run)
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert len(entries) > 1_000


async def test_a_log_that_fails_for_a_moment_loses_nothing(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged, and what was not written is written with the next attempt: in the middle, and at the end."""
    monkeypatch.setattr("aswarm.serve._log_access._SECONDS_AFTER_FAILURE", 0.01)
    async with opened(tmp_path, [call("slow"), "Done."], workshop) as place:
        run = await place.start()
        append, failures = place.runs._log.append, [sqlite3.OperationalError("disk I/O error")] * 2  # type: ignore[attr-defined]

        def failing(*arguments: Any) -> Any:
            if failures:
                raise failures.pop()
            return append(*arguments)

        monkeypatch.setattr(place.runs._log, "append", failing)  # type: ignore[attr-defined]
        await workshop.began.wait()
        while failures:
            await anyio.sleep(0.01)
        failures.append(sqlite3.OperationalError("disk I/O error"))
        workshop.go.set()
        live = await entries_of(run)
        assert live == await entries_of(run)
        assert live[-1].type == "RunFinished"
    assert "another attempt follows" in caplog.text


async def test_a_log_that_cannot_be_written_ends_no_run(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Live readers see the end, and the conversation is kept; leases and old runs are attempted again later."""
    monkeypatch.setattr("aswarm.serve._log_access._SECONDS_AFTER_FAILURE", 0.01)
    monkeypatch.setattr("aswarm.serve._local_runs._FORGET_EVERY", 0.0)
    monkeypatch.setattr("aswarm.serve._logged_runs._TOUCH_EVERY", 0.02)

    def fail(*_: Any) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    async with opened(tmp_path, [call("slow"), "Done."], workshop, silent_seconds=0.06) as place:
        run = await place.start()
        await workshop.began.wait()
        for name in ("append", "renew", "old", "touch"):
            monkeypatch.setattr(place.runs._log, name, fail)  # type: ignore[attr-defined]
        place.runs._foreign["other"] = 1  # type: ignore[attr-defined]
        while not all(text in caplog.text for text in ("leases of runs", "old runs", "readers of runs")):
            await anyio.sleep(0.01)
        workshop.go.set()
        assert (await run.result()).type == "RunFinished"
        assert (await place.history())[-1]["content"] == "Done."
    for text in ("the end of the run", "leases of runs", "old runs", "readers of runs"):
        assert text in caplog.text


async def test_a_log_that_cannot_be_read_for_a_moment_ends_nothing(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The failures are logged; afterwards another process stops one run, and the other one ends without a reader."""
    monkeypatch.setattr("aswarm.serve._changes._SECONDS_AFTER_FAILURE", 0.01)
    monkeypatch.setattr("aswarm.serve._logged_runs._TOUCH_EVERY", 0.01)
    failed: list[str] = []

    def failing_once(method: Any, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if name not in failed:
                failed.append(name)
                raise sqlite3.OperationalError("disk I/O error")
            return method(*arguments)

        return call

    script = [call("slow"), call("slow")]
    async with opened(tmp_path, script, workshop) as one, opened(tmp_path, [], workshop) as two:
        names = ["data_version", "asked_to_cancel", "last_read"]
        for name in names:
            log = one.runs._log  # type: ignore[attr-defined]
            monkeypatch.setattr(log, name, failing_once(getattr(log, name), name))
        run, unread = await one.start(), await one.start(conversation="d", on_disconnect=0.01)
        with anyio.fail_after(10):
            assert (await elsewhere(run, two).cancel("enough")).fields["reason"] == "enough"
            assert (await unread.result()).fields["reason"] == "no_reader"
    assert sorted(failed) == sorted(names)
    assert "cannot be read; another" in caplog.text
    assert "readers of a run" in caplog.text


async def test_an_end_that_cannot_be_made_ends_only_its_run(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run is closed when its lease has run out; the others go on."""
    async with opened(tmp_path, ["Here.", call("slow"), "Done."], workshop, silent_seconds=1) as place:
        with monkeypatch.context() as broken:
            broken.setattr("aswarm.serve._driving.Driver.endings", lambda *_: 1 / 0)
            with anyio.fail_after(10):
                last = await (await place.start(conversation="broken")).result()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "process_died")
        run = await place.start()
        workshop.go.set()
        assert (await run.result()).type == "RunFinished"
    assert "cannot be recorded" in caplog.text


async def test_readers_that_come_and_go_leave_no_task(tmp_path: Path, workshop: Workshop) -> None:
    """One task waits for the next reader, however many have gone; none when a reader is there, or after the end."""

    def waiting() -> int:
        return sum("_cancel_unread" in (task.name or "") for task in anyio.get_running_tasks())

    async with opened(tmp_path, [call("slow"), "Done."], workshop) as place:
        run = await place.start(on_disconnect=3600)
        await workshop.began.wait()
        for _ in range(5):
            with run.reading():
                await settle()
                assert waiting() == 0
            await settle()
            assert waiting() == 1
        with run.reading():
            workshop.go.set()
            await run.result()
        await settle()
        assert waiting() == 0


async def test_a_run_that_ends_without_a_reader_leaves_no_task(tmp_path: Path, workshop: Workshop) -> None:
    """What waited for a reader ends with the run."""
    async with opened(tmp_path, [call("slow"), "Done."], workshop) as place:
        run = await place.start(on_disconnect=3600)
        await workshop.began.wait()
        workshop.go.set()
        await run.result()
        await settle()
        assert not [task for task in anyio.get_running_tasks() if "_cancel_unread" in (task.name or "")]


async def test_old_runs_are_forgotten(tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their age, and by their number; a run that goes on is not."""
    monkeypatch.setattr("aswarm.serve._local_runs._FORGET_EVERY", 0.0)
    limits = Limits(kept_runs=1)
    async with opened(tmp_path, ["1", "2", call("slow")], workshop, silent_seconds=0.06, limits=limits) as place:
        place.runs._log._lease = 60_000  # type: ignore[attr-defined]  # a process on a slow machine is not dead
        runs = []
        for name in ("a", "b"):
            runs.append(await place.start(conversation=name))
            await runs[-1].result()
        active = await place.start(conversation="c")
        while len(await place.runs.list(user="ann")) > 2:
            await anyio.sleep(0.01)
        assert {record.id for record in await place.runs.list(user="ann")} == {runs[1].id, active.id}
        with pytest.raises(RunNotFound):
            await runs[0].read()


class FailingStore(MemoryStore):
    """A store that cannot be read while `is_failing`."""

    is_failing = False

    async def load(self, conversation_id: str, /, *, until: int | None = None) -> Any:
        if self.is_failing:
            raise RunError("the store cannot be reached")
        return await super().load(conversation_id, until=until)


async def test_a_store_that_fails_begins_nothing(workshop: Workshop) -> None:
    """The error reaches the caller, and the conversation is free."""

    async with (
        FailingStore() as store,
        AsyncSwarm(ScriptedModel(["Here."]).client()) as swarm,
        LocalRuns(swarm, store, agents=workshop.agents()) as runs,
    ):
        store.is_failing = True
        place = Place(runs, store)
        with pytest.raises(RunError, match="reached"):
            await place.start()
        assert await runs.list(user="ann") == []
        store.is_failing = False
        assert (await (await place.start()).result()).type == "RunFinished"


async def test_a_store_that_fails_is_no_request_that_was_sent_twice(workshop: Workshop) -> None:
    """The same answers again get the known run only if the calls are answered; an error of the store is raised."""

    async with (
        FailingStore() as store,
        AsyncSwarm(ScriptedModel([call("erase", call_id="e", name="draft"), "It is gone."]).client()) as swarm,
        LocalRuns(swarm, store, agents=workshop.agents()) as runs,
    ):
        asked = await Place(runs, store).start("Erase the draft.")
        await asked.result()
        answered = await asked.answer(CallAnswer("e", approve=True))
        await answered.result()
        store.is_failing = True
        with pytest.raises(RunError, match="reached"):
            await asked.answer(CallAnswer("e", approve=True))
        store.is_failing = False
        assert (await asked.answer(CallAnswer("e", approve=True))).id == answered.id


async def test_an_approval_is_for_the_calls_that_its_user_saw(workshop: Workshop) -> None:
    """Another writer comes between the look at the open calls and the run: its call is not run, and the run fails."""

    class OvertakenStore(MemoryStore):
        loads_before = math.inf

        async def load(self, conversation_id: str, /, *, until: int | None = None) -> Any:
            stored = await super().load(conversation_id, until=until)
            self.loads_before -= 1
            if self.loads_before == 0:
                assert stored is not None
                stored.messages[-1]["tool_calls"][0]["function"]["arguments"] = '{"name": "everything"}'
                change = Change(stored.revision, "other", 0, stored.messages, stored.agent, {})
                await self.write(conversation_id, change)
                return await super().load(conversation_id)
            return stored

    script = [call("erase", call_id="e", name="draft"), "It is gone."]
    async with (
        OvertakenStore() as store,
        AsyncSwarm(ScriptedModel(script).client()) as swarm,
        LocalRuns(swarm, store, agents=workshop.agents()) as runs,
    ):
        asked = await Place(runs, store).start("Erase the draft.")
        await asked.result()
        store.loads_before = 2
        last = await (await asked.answer(CallAnswer("e", approve=True))).result()
        assert (last.type, last.fields["error"]["type"]) == ("RunFailed", "Conflict")
        assert workshop.erased == []


class SlowStore(MemoryStore):
    """A store whose `load` waits until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go = anyio.Event(), anyio.Event()

    async def load(self, conversation_id: str, /, *, until: int | None = None) -> Any:
        self.began.set()
        await self.go.wait()
        return await super().load(conversation_id, until=until)


async def test_a_run_that_is_about_to_begin_has_a_lease(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is renewed while the conversation is loaded. If another process closes the run all the same, no model is asked."""
    model = ScriptedModel([])
    renewed: list[str] = []
    async with (
        SlowStore() as store,
        AsyncSwarm(model.client()) as swarm,
        LocalRuns(swarm, store, agents=workshop.agents(), log=tmp_path / "chats.sqlite", silent_seconds=1) as runs,
    ):
        monkeypatch.setattr(runs._log, "renew", renewed.extend)
        refused: list[RunNotFound] = []

        async def ask() -> None:
            try:
                await Place(runs, store).start(run_id="r")
            except RunNotFound as error:
                refused.append(error)

        with anyio.move_on_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await store.began.wait()
                while "r" not in renewed:
                    await anyio.sleep(0.01)
                with sqlite3.connect(tmp_path / "chats.sqlite") as other:
                    other.execute("UPDATE aswarm_run SET status = 'stopped', owner = 'other', ended = 1")
                other.close()
                store.go.set()
        store.go.set()
        assert len(refused) == 1
        assert model.requests == []


async def test_draining_waits_for_a_run_that_is_about_to_begin(workshop: Workshop) -> None:
    """Its conversation is being loaded. It is refused, leaves nothing, its readers too, and no run begins later."""
    async with (
        SlowStore() as store,
        AsyncSwarm(ScriptedModel(["Here."]).client()) as swarm,
        LocalRuns(swarm, store, agents=workshop.agents()) as runs,
    ):
        refused: list[ShuttingDown] = []
        is_drained = False

        async def ask() -> None:
            try:
                await Place(runs, store).start(run_id="r")
            except ShuttingDown as error:
                refused.append(error)

        async def drain() -> None:
            nonlocal is_drained
            await runs.drain(0)
            is_drained = True

        async def read() -> None:
            with pytest.raises(RunNotFound):
                await Run(runs, await runs.get("r", user="ann")).result()

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await store.began.wait()
            group.start_soon(read)
            group.start_soon(drain)
            await anyio.wait_all_tasks_blocked()
            assert not is_drained
            store.go.set()
        assert len(refused) == 1
        assert await runs.list(user="ann") == []


async def test_leaving_the_block_stops_runs_and_keeps_them(workshop: Workshop) -> None:
    """What its body raises leaves as itself, and not in a group."""
    async with MemoryStore() as store, AsyncSwarm(ScriptedModel([call("slow")]).client()) as swarm:

        async def leave() -> None:
            async with LocalRuns(swarm, store, agents=workshop.agents()) as runs:
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
            with pytest.raises(RuntimeError, match="open already"):
                await runs.__aenter__()


async def test_agents_have_names_of_their_own() -> None:
    """None, two of one name, and a mapping with other names are refused; one alone and a mapping by name are taken."""
    async with AsyncSwarm(ScriptedModel([]).client()) as swarm:
        for agents in ([], [Agent(name="A"), Agent(name="A")]):
            with pytest.raises(ConfigurationError, match="name of its own"):
                LocalRuns(swarm, agents=agents)
        with pytest.raises(ConfigurationError, match="'x' for the agent 'A'"):
            LocalRuns(swarm, agents={"x": Agent(name="A")})
        for agents in (Agent(name="A"), {"A": Agent(name="A")}):
            assert list(LocalRuns(swarm, agents=agents).drivers.agents) == ["A"]


# --- the log ----------------------------------------------------------------------------------------------------------


class opened_log:
    """The log on the file of a test."""

    def __init__(self, folder: Path) -> None:
        self.log = RunLog(folder / "chats.sqlite", lease=10)

    def __enter__(self) -> RunLog:
        return self.log

    def __exit__(self, *_: object) -> None:
        self.log.close()


async def test_a_log_is_private_and_versioned(tmp_path: Path) -> None:
    """Only its owner can read the file; one of a newer version, and one that is no database, are refused."""
    path = tmp_path / "chats.sqlite"
    with opened_log(tmp_path):
        assert path.stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE aswarm_run_format SET format = 99")
    connection.close()
    with pytest.raises(ConfigurationError, match="another version"):
        RunLog(path, lease=1)
    (tmp_path / "text").write_text("no database " * 100)
    with pytest.raises(ConfigurationError, match="cannot be in"):
        RunLog(tmp_path / "text", lease=1)


async def test_what_was_deleted_is_not_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is overwritten, also by a SQLite that by default does not do so."""
    connect = sqlite3.connect

    def careless(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **settings)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", careless)
    path = tmp_path / "log"
    log = RunLog(path, lease=10)
    log.begin(NewRun("ann", "c", [{"role": "user", "content": "Hi!"}]), "1", Limits())
    log.append({"1": LogRow(0, 0, b"s3cret " * 1000)}, {"1": Ending("finished")})
    log.delete(log.of_conversation("ann", "c"))
    log.close()
    assert b"s3cret" not in path.read_bytes()


async def test_only_the_owner_writes(tmp_path: Path) -> None:
    """A lot for a run of another owner is refused, and the rest of the transaction is done."""
    new = NewRun("ann", None, [{"role": "user", "content": "Hi!"}])
    with opened_log(tmp_path) as one, opened_log(tmp_path) as two:
        one.begin(new, "1", Limits())
        two.begin(new, "2", Limits())
        rows = {"1": LogRow(0, 0, b"{}"), "2": LogRow(0, 0, b"{}")}
        assert one.append(rows, {"1": Ending("finished"), "2": Ending("finished")}) == {"2"}
        assert (one.find("1", "ann").status, one.find("2", "ann").status) == ("finished", "running")


async def test_a_record_costs_the_same_however_long_the_log_is() -> None:
    """The number of its last entry is looked up, not searched for."""
    log = RunLog(None, lease=10)
    log.begin(NewRun("ann", None, [{"role": "user", "content": "Hi!"}]), "1", Limits())
    for number in range(2_000):
        log.append({"1": LogRow(number, number, b"{}")}, {})
    steps: list[None] = []
    log._connection.set_progress_handler(lambda: steps.append(None), 100)
    assert log.find("1", "ann").last == 1_999
    assert len(steps) < 10
    log.close()


async def test_a_log_is_read_in_pieces() -> None:
    """Of so many bytes; a reader gets at least one lot, however large it is."""
    log = RunLog(None, lease=10)
    log.begin(NewRun("ann", None, [{"role": "user", "content": "Hi!"}]), "1", Limits())
    for number in range(5):
        log.append({"1": LogRow(2 * number, 2 * number + 1, b"x" * 200_000)}, {})
    assert [row.first for row in log.entry_rows("1", -1)[0]] == [0, 2]
    assert [row.first for row in log.entry_rows("1", 3)[0]] == [4, 6]
    assert [row.first for row in log.entry_rows("1", 6)[0]] == [6, 8]
    assert log.entry_rows("1", 9) == ([], True)
    log.close()


async def test_reading_a_log_in_memory_lets_other_tasks_run(workshop: Workshop) -> None:
    """Each read has a checkpoint, so it can be cancelled."""
    async with (
        MemoryStore() as store,
        AsyncSwarm(ScriptedModel(["Here."]).client()) as swarm,
        LocalRuns(swarm, store, agents=workshop.agents()) as runs,
    ):
        run = await Place(runs, store).start()
        await run.result()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run.read()
        assert scope.cancelled_caught


async def test_the_kept_logs_have_a_size() -> None:
    """The newest ended runs stay that fit; a run that goes on is not deleted."""
    log = RunLog(None, lease=10)
    new = NewRun("ann", None, [{"role": "user", "content": "Hi!"}])
    for name in "12345":
        log.begin(new, name, Limits(runs_per_user=9))
        log.append({name: LogRow(0, 0, b"x" * 100)}, {} if name == "1" else {name: Ending("finished")})
    log.delete(log.old(0, 10, 250))
    assert {record.id for record in log.records("ann", None, 9)} == {"1", "4", "5"}
    log.delete(log.old(0, 1, 250))
    assert {record.id for record in log.records("ann", None, 9)} == {"1", "5"}
    log.delete(log.old(now() + 1_000, 1, 250))
    assert {record.id for record in log.records("ann", None, 9)} == {"1"}
    log.close()


async def test_a_log_that_cannot_be_written_has_a_limit_too(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for the disk counts: the run is stopped before it fills the memory."""
    limits = Limits(log_bytes=20_000)
    async with opened(tmp_path, [Answer("x" * 20_000)], workshop, cut=4, limits=limits) as place:
        monkeypatch.setattr("aswarm.serve._log_access._WRITE_EVERY", 60.0)
        last = await (await place.start()).result()
        assert (last.type, last.fields["reason"]) == ("RunStopped", "log_too_long")


async def test_the_last_entry_is_written_once() -> None:
    """It is in the log before readers see it, so that nothing is left to write."""
    live = LiveRun(RunRecord("r", "ann", None, None, "running", 0))
    first, last = Entry(0, 0, "RunStarted", {}), Entry(1, 0, "RunStopped", {"reason": "x"})
    live.add(first)
    lot = live.unwritten(last)
    assert lot is not None
    assert (lot.first, lot.last) == (0, 1)
    live.written(lot)
    live.add(last)
    assert live.unwritten() is None


async def test_a_wish_to_stop_a_run_that_does_not_run_here_changes_nothing(tmp_path: Path, workshop: Workshop) -> None:
    """The process has begun it in the log, and not yet here."""
    async with opened(tmp_path, [], workshop) as place:
        log = place.runs._log  # type: ignore[attr-defined]
        log.begin(NewRun("ann", None, [{"role": "user", "content": "Hi!"}]), "r", Limits())
        with opened_log(tmp_path) as other:
            other.ask_cancel("r", "enough")
        await place.runs._apply_cancel_requests()  # type: ignore[attr-defined]
        assert (await place.runs.get("r", user="ann")).is_running


async def test_only_a_process_that_is_certainly_gone_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on another machine, and one that cannot be signalled, may be alive."""
    place = RunLog(None, lease=1).owner.rsplit("/", 2)[0]
    assert _is_alive(f"{place}/{os.getpid()}/x")
    assert _is_alive(f"{place}/1/x")
    assert not _is_alive(f"{place}/{2**22 + 1}/x")
    assert _is_alive(f"elsewhere/{2**22 + 1}/x")
    assert now() > 10**12

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert _is_alive(f"{place}/1/x")


async def test_a_conversation_that_changes_while_a_run_begins(tmp_path: Path, workshop: Workshop) -> None:
    """Another writer was there between the first load and the first write: the run begins after what that one has written."""
    async with opened(tmp_path, ["Yes."], workshop) as place:
        assert isinstance(place.runs, LocalRuns)
        driver = place.runs.drivers.driver(NewRun("ann", "c", [{"role": "user", "content": "Hi!"}]))
        await driver.load(None)
        await place.store.write("ann/c", Change("", "1", 0, [{"role": "user", "content": "First."}], "Clerk", {}))
        await driver.drive([].append)
        assert [message["content"] for message in await place.history()] == ["First.", "Hi!", "Yes."]
        assert (await place.history())[2]["sender"] == "Clerk"


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


async def test_the_first_reason_to_stop_a_run_counts() -> None:
    """A later one changes nothing."""
    live = LiveRun(RunRecord("r", "ann", None, None, "running", 0))
    live.cancel("enough")
    live.cancel("more than enough")
    assert live.reason == "enough"


async def test_the_tools_of_a_client_are_not_offered_to_a_run_inside_a_function() -> None:
    """An agent as a tool has its own; the client could not know what its calls are about."""
    inner = Agent(name="Inner", instructions="inner")
    outer = Agent(name="Outer", instructions="outer", functions=[agent_tool(inner)])
    model = ScriptedModel([call("inner", request="Look"), "Seen.", "Done."])
    async with AsyncSwarm(model.client()) as swarm, LocalRuns(swarm, agents=outer) as runs:
        new = NewRun("ann", "c", [{"role": "user", "content": "Hi!"}], tools=[ClientTool("open_page", "", {})])
        assert (await Run(runs, await runs.start(new)).result()).type == "RunFinished"
    offered = [[each["function"]["name"] for each in asked.body.get("tools", ())] for asked in model.requests]
    assert offered == [["inner", "open_page"], [], ["inner", "open_page"]]


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
    assert LocalRuns(AsyncSwarm(), MemoryStore(), agents=Agent()).draining.is_set is False


@pytest.mark.anyio
async def test_a_block_that_is_cancelled_closes_everything() -> None:
    """Closing is not cut, whichever part of it waits."""
    closed = list[str]()

    async def close(name: str) -> None:
        await anyio.sleep(0)
        closed.append(name)

    async def opened() -> ShieldedExitStack:
        async with ShieldedExitStack() as stack:
            stack.push_async_callback(close, "first")
            await stack.enter_async_context(anyio.create_task_group())
            stack.push_async_callback(close, "second")
            return stack.pop_all()

    with anyio.CancelScope() as scope:
        stack = await opened()
        scope.cancel()
        await stack.aclose()
    assert scope.cancel_called
    with anyio.CancelScope() as scope:
        async with ShieldedExitStack() as failing:
            failing.push_async_callback(close, "third")
            scope.cancel()
            await anyio.sleep(60)
    assert scope.cancelled_caught
    assert closed == ["second", "first", "third"]


@pytest.mark.anyio
async def test_the_end_is_found_behind_numbers_that_the_log_never_got() -> None:
    """An execution that has lost its run has shown them; where there is no end at all, the log has been deleted."""
    end = Entry(1, 0, "RunStopped", {"reason": "cancelled"})

    class Lost:
        lasts = [10_001, 1, 7, 7]

        async def get(self, run_id: str, *, user: str) -> RunRecord:
            return RunRecord(run_id, user, None, None, "stopped", 0, last=self.lasts.pop(0))

        async def read(self, run_id: str, after: int, *, user: str) -> list[Entry]:
            return [end] if after == 0 else []

    runs: Any = Lost()
    run = Run(runs, RunRecord("r", "ann", None, None, "running", 0))
    assert await run.result() == end
    with pytest.raises(RunNotFound):
        await run.result()

"""`LocalRuns` beyond the contract: several on one file, a database that fails, and the end of the process."""

from __future__ import annotations

import signal
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, agent_tool
from aswarm.conversations import MemoryStore
from aswarm.runs import (
    AnswersRefused,
    ClientTool,
    ConversationNotFound,
    Entry,
    LocalRuns,
    NewRun,
    Run,
    RunNotFound,
    RunRecord,
)
from aswarm.runs._registry import Registry
from aswarm.serve import Service, local_only
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.conversations.stores import change
from tests.support.leaving.run_scenes import settle
from tests.support.runs.kept_runs import Place, Workshop, elsewhere, entries_of, in_file, in_memory, reading
from tests.support.sql.hooks import before_statements
from tests.support.tools.deferred import tracker


async def test_another_process_reads_a_run_live(tmp_path: Path, workshop: Workshop) -> None:
    """Its reader gets the same entries, as they come, and the end."""
    async with in_file(tmp_path, [call("slow"), "Done."], workshop) as one, in_file(tmp_path, [], workshop) as two:
        run = await one.start_slow()
        found: list[Entry] = []
        async for entry in elsewhere(run, two).entries():
            found.append(entry)
            if entry.type == "ToolCallStarted":
                workshop.go.set()
        assert found == await entries_of(run)


@pytest.mark.slow
async def test_a_reader_in_another_process_counts(tmp_path: Path, workshop: Workshop) -> None:
    """The owner does not stop a run that is read elsewhere, and stops it when that reader leaves."""
    async with in_file(tmp_path, [call("slow")], workshop) as one, in_file(tmp_path, [], workshop) as two:
        run = await one.start(on_disconnect=0.5)
        with reading(elsewhere(run, two)), reading(elsewhere(run, two)):
            await anyio.sleep(2.5)
            assert (await one.runs.get(run.id, user="ann")).is_running
        assert (await run.last_entry()).fields["reason"] == "no_reader"


async def test_a_reader_far_behind_reads_the_log(tmp_path: Path, workshop: Workshop) -> None:
    """A live run keeps only its newest entries in memory; a reader gets the older ones from the file."""
    script = [ScriptedAnswer("x" * 2_000, [call("slow")]), "Done."]
    async with in_file(tmp_path, script, workshop, cut=2) as place:
        run = await place.start_slow()
        with closing(sqlite3.connect(tmp_path / "chats.sqlite")) as file:
            while file.execute("SELECT max(last) FROM aswarm_entry").fetchone()[0] < 1_000:
                await anyio.sleep(0.01)
        await anyio.sleep(0.1)  # until the written entries leave the memory
        workshop.go.set()
        entries = await entries_of(run)
        assert [entry.seq for entry in entries] == list(range(len(entries)))
        assert len(entries) > 1_000


async def test_readers_cost_no_task(tmp_path: Path, workshop: Workshop) -> None:
    """Neither while they wait, here or in another process, nor when they have left a run that waits for the next reader."""
    async with in_file(tmp_path, [call("slow"), "Done."], workshop) as place, in_file(tmp_path, [], workshop) as two:
        run = await place.start_slow(on_disconnect=3600)
        await settle()
        before = len(anyio.get_running_tasks())
        async with anyio.create_task_group() as group:

            async def read(run: Run) -> None:
                with run._registry.notifier.reading(run.record):
                    await run.read((await run._runs.get(run.id, user="ann")).last)

            for reader in (run, elsewhere(run, two)) * 3:
                group.start_soon(read, reader)
            await anyio.sleep(0.1)
            await settle()
            assert len(anyio.get_running_tasks()) == before + 6
            group.cancel_scope.cancel()
        await settle()
        assert len(anyio.get_running_tasks()) == before
        workshop.go.set()
        await run.last_entry()


async def test_leaving_the_block_stops_runs_and_keeps_them(workshop: Workshop) -> None:
    """An exception of its body is raised as itself, and not in a group."""
    async with MemoryStore() as store, AsyncSwarm(ScriptedModel([call("slow")]).client()) as swarm:

        async def leave() -> None:
            async with LocalRuns(swarm, store=store, agents=workshop.agents()) as runs:
                await Place(runs, store, workshop).start_slow()
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
    """No agent, two of one name, and a mapping with other names are refused; one alone and a mapping by name are accepted."""
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
            assert list(LocalRuns(swarm, agents=agents).agents) == ["A"]


# --- the log ----------------------------------------------------------------------------------------------------------


async def test_deleted_data_is_not_in_the_file(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is overwritten, also by a SQLite that by default does not overwrite."""
    connect = sqlite3.connect

    def careless(*arguments: Any, **settings: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **settings)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", careless)
    async with in_file(tmp_path, ["s3cret " * 1000], workshop) as place:
        await (await place.start()).last_entry()
        await place.runs.forget("c", user="ann")
        await place.store.delete("ann/c")
    assert b"s3cret" not in (tmp_path / "chats.sqlite").read_bytes()


async def test_reading_a_log_in_memory_lets_other_tasks_run(workshop: Workshop) -> None:
    """Each read has a checkpoint, so it can be cancelled."""
    async with in_memory(["Here."], workshop) as place:
        run = await place.start()
        await run.last_entry()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run.read()
        assert scope.cancelled_caught


async def test_the_first_reason_to_stop_a_run_counts() -> None:
    """A second cancel, while the functions of the run stop, changes nothing."""
    began, stops, go = anyio.Event(), anyio.Event(), anyio.Event()

    async def work() -> str:
        try:
            began.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                stops.set()
                await go.wait()
        return "never"

    swarm = AsyncSwarm(ScriptedModel([call("work")]).client())
    async with LocalRuns(swarm, agents=Agent(functions=[work])) as runs, anyio.create_task_group() as group:
        run = await runs.get_run((await runs.start(NewRun("ann", "c", "Hi!"))).id, user="ann")
        await began.wait()
        group.start_soon(run.cancel, "enough")
        await stops.wait()
        group.start_soon(run.cancel, "more than enough")
        await anyio.wait_all_tasks_blocked()
        go.set()
        assert (await run.last_entry()).fields["reason"] == "enough"


OPEN_PAGE = ClientTool(name="open_page", description="", parameters={})


async def test_the_tools_of_a_client_are_not_offered_to_a_run_inside_a_function() -> None:
    """An agent as a tool has its own tools; the client could not know the reason of its calls."""
    inner = Agent(name="Inner", instructions="inner")
    outer = Agent(name="Outer", instructions="outer", functions=[agent_tool(inner)])
    model = ScriptedModel([call("inner", request="Look"), "Seen.", "Done."])
    async with AsyncSwarm(model.client()) as swarm, LocalRuns(swarm, agents=outer) as runs:
        new = NewRun("ann", "c", "Hi!", tools=[OPEN_PAGE])
        assert (await (await runs.start(new)).last_entry()).type == "RunFinished"
    offered = [[each["function"]["name"] for each in asked.body.get("tools", ())] for asked in model.requests]
    assert offered == [["inner", "open_page"], [], ["inner", "open_page"]]


async def test_a_client_gives_no_deferred_function_a_schema() -> None:
    """A call of this name is a call of the agent's function. A tool named `call_tool` could not be called."""
    model = ScriptedModel(["Hi!"])
    names = ["delete_issue", "call_tool", "open_page"]
    async with AsyncSwarm(model.client()) as swarm, LocalRuns(swarm, agents=tracker()) as runs:
        new = NewRun("ann", "c", "Hi!", tools=[replace(OPEN_PAGE, name=name) for name in names])
        await (await runs.start(new)).last_entry()
    (asked,) = model.requests
    assert asked.tool_names == ["read_clock", "search_tools", "call_tool", "open_page"]


async def test_a_call_of_the_client_and_a_later_handoff() -> None:
    """The client is asked first: a function that hands off would close its call, which the client may have made already."""
    clerk = Agent(name="Clerk")

    async def leave() -> Agent:
        return clerk

    model = ScriptedModel([[call("open_page"), call("leave")], "Done."])
    agents = [Agent(name="A", functions=[leave]), clerk]
    async with AsyncSwarm(model.client()) as swarm, LocalRuns(swarm, agents=agents) as runs:
        ending = await (await runs.start(NewRun("ann", "c", "Hi!", tools=[OPEN_PAGE]))).last_entry()
    assert ending.response["stop"] == "waiting"
    assert [each["name"] for each in ending.response["waiting"]] == ["open_page", "leave"]


# --- the process ------------------------------------------------------------------------------------------------------


def service() -> Service:
    return Service(LocalRuns(AsyncSwarm(ScriptedModel([]).client()), agents=Agent()), auth=local_only)


async def test_a_service_in_another_thread_handles_no_signals() -> None:
    """Only the main thread may set handlers; the server in that thread stops the service in another way."""

    async def enter() -> None:
        async with service().lifespan():
            pass

    await anyio.to_thread.run_sync(anyio.run, enter)


async def test_a_service_restores_the_handlers_of_signals() -> None:
    """Unless the server has set another handler since."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        mine = signal.getsignal(signal.SIGTERM)
        for changed, after in ((mine, mine), (signal.SIG_DFL, signal.SIG_DFL)):
            async with service().lifespan():
                assert signal.getsignal(signal.SIGTERM) is not mine
                if changed is not mine:
                    signal.signal(signal.SIGTERM, changed)
            assert signal.getsignal(signal.SIGTERM) is after
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("moment", ["open", "opening"])
async def test_a_block_that_is_cancelled_closes_everything(
    tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Neither closing nor an opening that is cancelled leaves the file open: SQLite removes the log files beside it."""
    opening, free = threading.Event(), threading.Event()

    def wait(_: sqlite3.Connection, statement: str) -> None:
        if moment == "opening" and "DISTINCT owner" in statement:
            opening.set()
            free.wait(60)

    before_statements(monkeypatch, wait)
    runs = LocalRuns(AsyncSwarm(ScriptedModel([]).client()), store=tmp_path / "chats.sqlite", agents=workshop.agents())
    async with anyio.create_task_group() as group:
        if moment == "opening":
            group.start_soon(runs.__aenter__)
            await anyio.to_thread.run_sync(opening.wait)
            group.cancel_scope.cancel()
            free.set()
        else:
            async with runs:
                assert len([*tmp_path.iterdir()]) > 1
                group.cancel_scope.cancel()
    assert not runs.is_open
    assert [path.name for path in tmp_path.iterdir()] == ["chats.sqlite"]


async def test_the_end_is_found_behind_numbers_that_the_log_never_got() -> None:
    """An execution that has lost its run has shown them. A log without an end was deleted."""
    end = Entry(1, 0, "RunStopped", {"reason": "cancelled"})
    record = RunRecord(id="r", user="ann", conversation=None, agent=None, status="stopped", started_ms=0)

    class Lost(Registry):
        lasts = [10_001, 1, 7, 7]

        def __init__(self) -> None:
            """Without a database."""

        async def find(self, run_id: str, user: str | None) -> RunRecord:
            return replace(record, last=self.lasts.pop(0))

        async def read(self, run_id: str, after: int, user: str) -> list[Entry]:
            return [end] if after == 0 else []

    assert await Lost().wait_for_end(record) == end
    with pytest.raises(RunNotFound):
        await Lost().wait_for_end(record)


async def test_a_url_is_no_file() -> None:
    """A URL as `store` would be the name of a new SQLite file. The error does not repeat its password."""
    with pytest.raises(ConfigurationError, match=r"not a URL with 'postgresql'; open a PostgresStore") as caught:
        LocalRuns(agents=Agent(), store="postgresql://ann:s3cret@host/runs")
    assert "s3cret" not in str(caught.value)


async def test_a_first_guess_gets_an_answer() -> None:
    """A text is one message of the user; `start` names what it needs."""
    assert NewRun("ann", messages="Hi!").digest == NewRun("ann", messages=[{"role": "user", "content": "Hi!"}]).digest
    async with AsyncSwarm(ScriptedModel(["Hello."]).client()) as swarm, LocalRuns(swarm, agents=Agent()) as runs:
        with pytest.raises(
            ConfigurationError,
            match=r"start\(\) needs an agent and messages, such as start\(.*\), or a NewRun; it got no messages",
        ):
            await runs.start("Hi!")  # type: ignore[arg-type]
        run = await runs.get_run((await runs.start(NewRun("ann", "c", "Hi!"))).id, user="ann")
        assert (await run.result()).text == "Hello."


async def test_settings_that_no_run_could_use() -> None:
    """A store without a database, and two agents of one name. A conversation of no database is unknown."""
    store: Any = object()
    with pytest.raises(ConfigurationError, match="object has no database"):
        LocalRuns(AsyncSwarm(), store=store, agents=Agent())
    with pytest.raises(ConfigurationError, match="task_agent needs its own name"):
        LocalRuns(AsyncSwarm(), agents=Agent(), task_agent=Agent())
    swarm = AsyncSwarm(ScriptedModel([]).client())
    async with LocalRuns(swarm, agents=Agent()) as runs:
        with pytest.raises(ConversationNotFound):
            await runs.delete_conversation("\0", user="ann")
        await runs.store.write("ann/c", change(None, {"role": "assistant", "content": "Hello."}))
        with pytest.raises(AnswersRefused, match="no answer to regenerate"):
            await runs.start(NewRun("ann", "c", regenerate=True))


async def test_the_response_of_a_run_needs_its_agent(tmp_path: Path) -> None:
    """The next version of a program may lack the agent with which a run has ended."""
    swarm, path = AsyncSwarm(ScriptedModel(["Hello."]).client()), tmp_path / "a.sqlite"
    async with LocalRuns(swarm, store=path, agents=Agent(name="Old")) as runs:
        await (await runs.start(NewRun("ann", "c", "Hi!", run_id="r"))).last_entry()
    async with LocalRuns(swarm, store=path, agents=Agent(name="New")) as runs:
        with pytest.raises(ConfigurationError, match="'Old', which this process does not have"):
            await Run(runs, await runs.get("r", user="ann")).result()

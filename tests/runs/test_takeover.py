"""Another process takes over a run whose process has died, at any moment of the run.

A copy of the file during the run stands for the file of a dead process: the copy has no lock of a live process.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ToolError, tool
from aswarm.conversations import SQLiteStore
from aswarm.runs import ContextEdit, Entry, LocalRuns, NewRun, Run, fold
from aswarm.serve import AGUIWire, VercelWire
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call
from tests.support.runs.kept_runs import Workshop, elsewhere, entries_of, in_file
from tests.support.serve.record_checker import record_faults
from tests.support.serve.wire_checks import AguiReader, VercelReader
from tests.support.sql.hooks import before_statements
from tests.support.tools.deferred import found

pytestmark = pytest.mark.processes

UNKNOWN = "cancelled; its outcome is unknown"
NEW = NewRun("ann", "c", [{"role": "user", "content": "Go"}], run_id="r", context_variables={"kept": 1})
# The provider uses ids of calls again; `put` is deferred; the agent changes, and so do the context variables.
TURNS = [
    ScriptedAnswer(calls=[call("look", call_id="c1", n=1), found("put", {"n": 2}, call_id="c2")]),
    ScriptedAnswer("Now this.", [call("look", call_id="c1", n=3), call("fail", call_id="c2", n=4)]),
    ScriptedAnswer(calls=[call("transfer_to_b", call_id="c1")]),
    ScriptedAnswer(calls=[call("drop", call_id="c1", n=5), call("look", call_id="c2", n=6)]),
    ScriptedAnswer("All done, and said once."),
]


@dataclass
class Notes:
    """Agents whose functions note their calls in `made`, and take a while."""

    made: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    async def _note(self, name: str, n: int) -> None:
        self.made.append((name, n))
        await anyio.sleep(0.02)

    def agents(self) -> list[Agent]:
        async def look(n: int) -> str:
            await self._note("look", n)
            return f"found {n}"

        @tool(defer=True)
        async def put(context_variables: dict[str, Any], n: int) -> str:
            await self._note("put", n)
            context_variables[f"key {n}"] = [n]
            return "put"

        async def fail(n: int) -> str:
            await self._note("fail", n)
            raise ToolError(f"no {n}")

        async def drop(context_variables: dict[str, Any], n: int) -> str:
            await self._note("drop", n)
            context_variables.pop("kept", None)
            return "dropped"

        b = Agent(name="B", functions=[look, drop])
        return [Agent(name="A", functions=[look, put, fail, b]), b]


def turn(request: Request) -> ScriptedAnswer:
    """Return the answer of the model in this turn."""
    return replace(TURNS[sum(message["role"] == "assistant" for message in request.messages)], pause=0.02)


@asynccontextmanager
async def opened(path: Path, notes: Notes, script: Any = turn, **settings: Any) -> AsyncGenerator[LocalRuns]:
    async with (
        SQLiteStore(path) as store,
        AsyncSwarm(ScriptedModel(script, cut=8).client()) as swarm,
        LocalRuns(swarm, store=store, agents=notes.agents(), **settings) as runs,
    ):
        yield runs


@dataclass
class Death:
    """A dead process: its file, the lines that its readers have seen, and the calls that its functions have noted."""

    path: Path
    seen: list[bytes]
    made: list[tuple[str, int]]


async def deaths(folder: Path, version: str) -> list[Death]:
    """Run all turns. Returns the deaths of a process after a write, for writes of all parts of the run."""
    path, found, notes, size = folder / "chats.sqlite", list[Death](), Notes(), -1
    seen: list[bytes] = []
    async with opened(path, notes, version=version) as runs:

        async def read(run: Run) -> None:
            async for entry in run.entries():
                seen.append(entry.to_json())  # noqa: PERF401 - it is looked at meanwhile

        run = await runs.start(NEW)
        async with anyio.create_task_group() as group:
            group.start_soon(read, run)
            while (record := await runs.get("r", user="ann")).is_running:
                if (last := written(path)) > size:
                    size, made, shown = last, notes.made.copy(), seen.copy()
                    found.append(Death(copied(path, folder / f"{len(found)}.sqlite"), shown, made))
        assert record.reason is None
    assert len(found) > 12
    return found[:: max(1, len(found) // 16)]


def written(path: Path) -> int:
    """Return the number of the last entry in the file."""
    with closing(sqlite3.connect(path)) as file:
        last: int = file.execute("SELECT max(last) FROM aswarm_entry").fetchone()[0]
        return last


def copied(path: Path, target: Path) -> Path:
    """Copy the file, as it is on the disk."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy)
    return target


async def left(runs: LocalRuns) -> tuple[list[Entry], list[Any], Any]:
    """Return the log of the run after its end, its conversation, and its context variables."""
    entries = await entries_of(Run(runs, await runs.get("r", user="ann")))
    stored = await runs.store.load("ann/c")
    assert stored is not None
    assert stored.agent == fold(entries).agent
    return entries, stored.messages, stored.context_variables


def check(entries: Sequence[Entry], history: Sequence[Any], context: Any, death: Death) -> None:
    """Check that the log, the conversation and the answer agree, and that no reader has seen anything else."""
    assert record_faults(entries, history) == []
    folded = fold(entries)
    assert (folded.messages, folded.context) == (history, context)
    lines = [entry.to_json() for entry in entries]
    seen = [line for line in death.seen if line in lines]
    assert lines[: len(seen)] == seen
    assert [entry.seq for entry in entries] == sorted({entry.seq for entry in entries})


def check_wires(entries: Sequence[Entry]) -> None:
    """Give the log to strict readers, which raise the errors of their clients. A page shows the found tool, not its wrapper."""
    agui, agui_wire, vercel, vercel_wire = AguiReader(()), AGUIWire(), VercelReader(), VercelWire()
    for entry in entries:
        frames = [agui_wire.encode(entry), vercel_wire.encode(entry)]
        assert b"call_tool" not in b"".join(itertools.chain(*frames))
        agui.read(frames[0])
        vercel.read(frames[1])


async def test_the_choices_of_the_client_outlive_the_process(tmp_path: Path) -> None:
    """The process that takes over sends the model, the settings and the notes, and has the changed context."""
    path, bodies = tmp_path / "chats.sqlite", list[Any]()
    note = {"role": "user", "content": "The page shows order 7."}

    def answer(request: Request) -> ScriptedAnswer:
        bodies.append(request.body)
        return turn(request)

    async with opened(path, Notes(), version="1") as runs:
        edit = ContextEdit(changes={"tier": "gold"}, revision="")
        await runs.start(replace(NEW, model="chosen", settings={"temperature": 0.1}, notes=[note], context_edit=edit))
        copy = copied(path, tmp_path / "copy.sqlite")
        await Run(runs, await runs.get("r", user="ann")).last_entry()
    async with opened(copy, Notes(), answer, version="1") as runs:
        entries, _, context = await left(runs)
    assert (entries[0].fields["edited"], context["tier"]) == (["tier"], "gold")
    assert bodies
    assert {body["model"] for body in bodies} == {"chosen"}
    assert all(body["temperature"] == 0.1 and note in body["messages"] for body in bodies)


async def test_a_run_without_a_version_is_closed(tmp_path: Path) -> None:
    """Wherever its process dies, the conversation gets everything that is recorded, and no function and no model is called."""
    for death in await deaths(tmp_path, ""):
        notes = Notes()
        async with opened(death.path, notes) as runs:
            entries, history, context = await left(runs)
        assert notes.made == []
        assert entries[-1].fields.get("reason") == "process_died" or entries[-1].type == "RunFinished"
        check(entries, history, context, death)
        check_wires(entries)


@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.heavy)])
async def test_a_run_with_a_version_is_continued(tmp_path: Path) -> None:
    """No function runs twice; the outcome of a call that had started is unknown."""
    for death in await deaths(tmp_path, "1"):
        notes = Notes()
        async with opened(death.path, notes, version="1") as runs:
            entries, history, context = await left(runs)
        check_continued(entries, history, context, death, notes)


def check_continued(
    entries: Sequence[Entry], history: Sequence[Any], context: Any, death: Death, *notes: Notes
) -> None:
    check(entries, history, context, death)
    assert entries[-1].type == "RunFinished"
    assert history[-1]["content"] == "All done, and said once."
    made = Counter([*death.made, *(each for note in notes for each in note.made)])
    assert set(made.values()) <= {1}
    unknown = sum(message["content"] == UNKNOWN for message in history)
    results = {message["content"] for message in history if message["role"] == "tool"}
    whole = {"found 1", "put", "found 3", "no 4", "found 6", "dropped", "transferred to B", UNKNOWN}
    assert unknown <= 2 * len(notes)  # two calls run together when a process dies
    assert len(results - {UNKNOWN}) + unknown == len(whole) - 1, results


async def test_another_version_does_not_continue_it(tmp_path: Path) -> None:
    """Its code may be other code; nor does a process without a version."""
    for death, settings in zip((await deaths(tmp_path, "1"))[3:5], ({"version": "2"}, {"version": None}), strict=True):
        async with opened(death.path, Notes(), **settings) as runs:
            entries, history, context = await left(runs)
        assert entries[-1].fields["reason"] == "process_died"
        check(entries, history, context, death)


async def test_a_process_without_the_agent_closes_the_run(tmp_path: Path) -> None:
    """It cannot know the functions: the run fails, and the conversation goes on."""
    death = (await deaths(tmp_path, "1"))[4]
    async with (
        SQLiteStore(death.path) as store,
        AsyncSwarm(ScriptedModel(["Hello."]).client()) as swarm,
        LocalRuns(swarm, store=store, agents=Agent(name="C"), version="1") as runs,
    ):
        last = await Run(runs, await runs.get("r", user="ann")).last_entry()
        assert (last.type, last.fields["error"]["type"]) == ("RunFailed", "ConfigurationError")
        assert not (await runs.get("r", user="ann")).is_running


def declare_dead(folder: Path) -> None:
    """Let the runs in the file belong to a dead process."""
    with closing(sqlite3.connect(folder / "chats.sqlite")) as file, file:
        file.execute("UPDATE aswarm_run SET owner = 'dead#1'")


async def test_an_attempt_that_has_lost_its_run_writes_nothing(tmp_path: Path) -> None:
    """Its process lives, but another one holds it for dead. The readers of both see the same one end."""
    one, two = Workshop(), Workshop()
    async with in_file(tmp_path, [call("slow"), "Done."], one) as first:
        run = await first.start_slow()
        declare_dead(tmp_path)
        async with in_file(tmp_path, [], two) as second:
            last = await elsewhere(run, second).last_entry()
            assert (last.type, last.fields["reason"]) == ("RunStopped", "process_died")
            one.go.set()
            assert await run.last_entry() == last
            entries = await entries_of(run)
            assert entries == await entries_of(elsewhere(run, second))
            assert [entry.type for entry in entries if entry.is_last] == ["RunStopped"]
            history = await second.history()
            assert history[-1]["content"] == UNKNOWN
            assert fold(entries).messages == history


async def test_an_attempt_waits_until_its_number_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers see its entries earlier than the disk. After a power failure, no other attempt may give entries the same numbers."""
    synchronous, full = list[int](), 2

    def note(connection: sqlite3.Connection, statement: str) -> None:
        if "attempt = attempt + 1" in statement:
            synchronous.append(connection.execute("PRAGMA synchronous").fetchone()[0])

    (tmp_path / "copy").mkdir()
    async with in_file(tmp_path, [call("slow")], Workshop(), version="1") as it:
        run = await it.start_slow()
        copied(tmp_path / "chats.sqlite", tmp_path / "copy/chats.sqlite")
        before_statements(monkeypatch, note)
        async with in_file(tmp_path / "copy", ["Done."], Workshop(), version="1") as later:
            await elsewhere(run, later).last_entry()
    assert set(synchronous) == {full}


async def test_a_message_closes_the_run_of_a_dead_process(tmp_path: Path) -> None:
    """It does not wait until this process looks for dead processes."""
    one = Workshop()
    async with (
        in_file(tmp_path, [call("slow")], one) as first,
        in_file(tmp_path, ["Here."], Workshop(), failover_seconds=3600) as later,
    ):
        run = await first.start_slow()
        declare_dead(tmp_path)
        assert (await (await later.start("Still there?")).last_entry()).type == "RunFinished"
        assert (await later.runs.get(run.id, user="ann")).reason == "process_died"
        one.go.set()

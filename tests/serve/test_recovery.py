"""A run whose process died: its log is closed with what the conversation has, however much of the log is missing."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import anyio
import pytest
from kept_runs import Workshop, entries_of
from run_logs import Scene, agents, logged
from run_scenes import until
from wire_checks import AguiReader, VercelReader

from aswarm import AsyncSwarm
from aswarm.conversations import Change, MemoryStore, SQLiteStore
from aswarm.serve import AguiWire, Entry, Limits, LocalRuns, NewRun, Run, VercelWire, fold
from aswarm.serve._driving import Drivers
from aswarm.serve._entries import call_id
from aswarm.testing import Answer as Scripted
from aswarm.testing import ScriptedModel, call

pytestmark = pytest.mark.anyio

# The provider uses ids of calls again; the agent changes, and so do the context variables.
SCENE = Scene(
    [
        [call("look", call_id="c1", n=1), call("put", call_id="c2", n=2)],
        Scripted("Now this.", [call("look", call_id="c1", n=3), call("fail", call_id="c2", n=4)]),
        call("transfer_to_b", call_id="c1"),
        [call("look", call_id="c1", n=5), call("ask", call_id="c2", n=6)],
        [call("drop", call_id="c1", n=7), call("look", call_id="c2", n=8)],
        "All done.",
    ],
    decided={"ask": True},
    cut=None,
)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("number", "answers"),
    [
        (0, {"c1": "found 1", "c2": "put", "c1~2": "found 3", "c2~2": "no 4", "c1~4": "found 5"}),
        (1, {"c2~3": "asked 6", "c1~5": "dropped", "c2~4": "found 8"}),
    ],
)
async def test_the_log_folds_to_the_conversation_wherever_it_ends(number: int, answers: dict[str, str]) -> None:
    """With its agent and its context variables; and no wire takes an answer of a later turn for one of an earlier turn."""
    found = await logged(SCENE)
    log, history = found.logs[number], found.histories[number]
    whole, told = fold(log), set[str]()
    async with MemoryStore() as store, AsyncSwarm(ScriptedModel([]).client()) as swarm:
        stored = Change("", "1", 0, [*history, *whole.messages], str(whole.agent), whole.context)
        await store.write("ann/chat", stored)
        drivers = Drivers(swarm, store, agents(), Limits())
        for cut in range(1, len(log)):
            maker, response = await drivers.recover("ann", "chat", log[:cut])
            maker.seq = 1_000
            entries = [*log[:cut], *maker.stopped("process_died", response)]
            folded = fold(entries)
            assert folded.messages == whole.messages
            assert (folded.agent, folded.context) == (whole.agent, whole.context)
            assert entries[-1].response["usage"]["requests"] == fold(log[:cut]).usage["requests"]
            assert [entry.seq for entry in entries][cut:] == list(range(1_000, 1_000 + len(entries) - cut))
            results = told_by_wires(entries)
            assert {name: text for name, text in results.items() if name in answers}.items() <= answers.items()
            told |= results.keys()
    assert told >= answers.keys()


def told_by_wires(entries: list[Entry]) -> dict[str, str]:
    """The answers of calls that a client of AG-UI gets. The strict reader of another wire reads the entries too."""
    agui, agui_wire = AguiReader(call_id(each) for each in entries[0].fields["calls"]), AguiWire()
    vercel, vercel_wire = VercelReader(), VercelWire()
    for entry in entries:
        agui.read(agui_wire.encode(entry))
        vercel.read(vercel_wire.encode(entry))
    return dict(agui.results)


async def test_a_conversation_that_another_writer_has_changed_says_nothing_of_the_run() -> None:
    """The log is closed as it is."""
    found = await logged(SCENE)
    async with MemoryStore() as store, AsyncSwarm(ScriptedModel([]).client()) as swarm:
        await store.write("ann/chat", Change("", "1", 0, [{"role": "user", "content": "Other"}], "A", {}))
        _, response = await Drivers(swarm, store, agents(), Limits()).recover("ann", "chat", found.logs[0][:9])
    assert response is None


async def test_a_log_in_a_file_that_lacks_the_end_of_a_run(tmp_path: Path) -> None:
    """Another process closes the run with the answers that the conversation has."""
    workshop, path = Workshop(), tmp_path / "chats.sqlite"
    model = ScriptedModel([call("look", number=1), call("look", number=2), call("slow"), "Done."])
    async with (
        SQLiteStore(path) as store,
        AsyncSwarm(model.client()) as swarm,
        LocalRuns(swarm, store, agents=workshop.agents()) as one,
    ):
        run = Run(one, await one.start(NewRun("ann", "c", [{"role": "user", "content": "Hi!"}])))
        await workshop.began.wait()
        await until(lambda: (rows(path, "SELECT max(last) FROM aswarm_run_entries")[0][0] or 0) > 5)
        await anyio.sleep(0.1)  # the writer has written what there is
        dead = f"{one._log.owner.rsplit('/', 2)[0]}/{2**22 + 1}/x"  # above every process id
        rows(path, "DELETE FROM aswarm_run_entries WHERE first > 0")
        rows(path, "UPDATE aswarm_run SET owner = ?", dead)
        async with LocalRuns(swarm, store, agents=workshop.agents()) as two:
            entries = await entries_of(Run(two, run.record))
            stored = await store.load("ann/c")
        workshop.go.set()
    assert stored is not None
    assert fold(entries).messages == stored.messages
    contents = [message["content"] for message in stored.messages if message["role"] == "tool"]
    assert contents == ["found 1", "found 2", "cancelled; its outcome is unknown"]


def rows(path: Path, statement: str, *values: Any) -> list[Any]:
    """Execute a statement on the file of the log."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()

"""What a journal refuses, and what it says then: other batches, other agents, other items, other files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, ConfigurationError, Result, RunError
from aswarm._journal import Journal
from journaled import BATCH, Died, Script, calls, dies, noting, rerun, run, says

HOLD = """
import sys
from aswarm._journal._file import JournalFile
held = JournalFile.open(sys.argv[1], {"agent": "Agent"})
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


async def made(path: Path) -> None:
    """A journal with one item that has ended, and one that has not."""
    await rerun(path, Script(says("Done")), Agent())


# --- files ---


@pytest.mark.asyncio
@pytest.mark.parametrize("fingerprint", [{"agent": "Other"}, {}, {**BATCH, "model": "gpt-5"}])
async def test_the_journal_of_another_batch(path: Path, fingerprint: dict[str, str]) -> None:
    """A journal whose fingerprint differs is refused by the name of what differs, and stays as it is."""
    await made(path)
    with pytest.raises(
        ConfigurationError, match=r"journal of another batch: its (agent|model) is .*journal of its own"
    ):
        Journal.open(path, fingerprint)
    assert (await rerun(path, Script(), Agent())).text == "Done"


@pytest.mark.asyncio
async def test_the_journal_of_another_version(path: Path) -> None:
    """A journal in another format is refused, and says which."""
    await made(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(
        ConfigurationError, match=r"written by another version of aswarm .its format is 7, this one's is 1"
    ):
        Journal.open(path, BATCH)


def test_a_database_of_something_else(path: Path) -> None:
    """Another program's database is refused, and not changed."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="a database, but no journal"):
        Journal.open(path, BATCH)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database(path: Path) -> None:
    """A file of another kind is refused, and not changed."""
    path.write_text("once upon a time, " * 100)
    with pytest.raises(ConfigurationError, match="is no journal of aswarm: file is not a database"):
        Journal.open(path, BATCH)
    assert path.read_text().startswith("once")


def test_a_path_that_leads_nowhere(path: Path) -> None:
    """A folder that is not there is said to be the trouble."""
    with pytest.raises(ConfigurationError, match=r"missing.run\.sqlite cannot be opened: unable to open"):
        Journal.open(path.parent / "missing" / "run.sqlite", BATCH)


def test_a_path_that_cannot_be_written(path: Path) -> None:
    """What SQLite says of a file that it could open and not use is passed on."""
    path.mkdir()
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        Journal.open(path, BATCH)


@pytest.mark.asyncio
async def test_two_processes(path: Path) -> None:
    """A journal that another process has open is refused; it is free as soon as that process is killed."""
    await made(path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigurationError, match="is in use: another batch has it open"):
            Journal.open(path, BATCH)
        holder.kill()
    assert (await rerun(path, Script(), Agent())).text == "Done"


@pytest.mark.asyncio
async def test_twice_in_one_process(path: Path) -> None:
    """The same holds for two batches of one process."""
    async with Journal.open(path, BATCH):
        with pytest.raises(ConfigurationError, match="is in use"):
            Journal.open(path, BATCH)


# --- items ---


@pytest.mark.asyncio
@pytest.mark.parametrize(("agent", "messages"), [("Agent", "Bye"), ("Other", "Hi")])
async def test_another_item_under_the_same_id(path: Path, agent: str, messages: str) -> None:
    """An item with other messages, or for another agent, is refused by itself; the others go on."""
    await made(path)
    async with Journal.open(path, BATCH) as journal:
        with pytest.raises(ConfigurationError, match=r"'a' is not the one that the journal .*run\.sqlite has"):
            await journal.begin("a", Agent(name=agent), messages)
        assert (await journal.begin("b", Agent(), messages)).response is None


@pytest.mark.asyncio
async def test_one_id_twice(path: Path) -> None:
    """Two items of one batch with one id are an error of the second, whether the first was there before or not."""
    await made(path)
    async with Journal.open(path, BATCH) as journal:
        for item in ("a", "new"):
            await journal.begin(item, Agent(), "Hi")
            with pytest.raises(ConfigurationError, match=f"two items have the id '{item}'"):
                await journal.begin(item, Agent(), "Hi")


@pytest.mark.asyncio
async def test_messages_that_are_none(path: Path) -> None:
    """Bad messages are that item's error, and odd ones can be told apart all the same."""
    async with Journal.open(path, BATCH) as journal:
        with pytest.raises(ConfigurationError, match="messages must be a list"):
            await journal.begin("a", Agent(), 7)
        for item in ("half \ud83d", [{"role": "user", "content": [{"type": "x", "data": object()}]}]):
            await journal.begin(str(item).encode(errors="replace").decode(), Agent(), item)


# --- requests ---


def agent_of(instructions: str = "Help.", **options: Any) -> Agent:
    return Agent(instructions=instructions, functions=[noting([], "one")], **options)


async def lengthen(agent: Agent) -> Agent:
    agent.functions.append(noting([], "two"))
    return agent


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"instructions": "Help more."}, "other instructions"),
        ({"model": "gpt-5"}, "other model"),
        ({"functions": []}, "other tools"),
        ({"instructions": None}, "other instructions"),
    ],
)
async def test_a_request_that_is_another_now(path: Path, change: dict[str, Any], named: str) -> None:
    """An item in the middle whose agents have changed is refused, and what has changed is named; nothing is asked."""
    with pytest.raises(Died):
        await rerun(path, Script(calls("one"), dies()), agent_of())
    model = Script()
    with pytest.raises(ConfigurationError, match=f"'a' cannot be resumed: request 1 .*; {named}.*another id"):
        await rerun(path, model, agent_of().model_copy(update=change))
    assert not model.asked
    assert (await rerun(path, Script(says("Done")), agent_of())).text == "Done"


# --- handoffs ---


@pytest.mark.asyncio
async def test_a_handoff_is_found_again(path: Path) -> None:
    """Agents in `functions` and agents that functions are seen to return are found by their names, back and forth."""

    def to_second() -> Agent:
        return second

    def to_first() -> Result:
        return Result(value="back", agent=first)

    first = Agent(name="First", functions=[to_second])
    third = Agent(name="Third")
    second = Agent(name="Second", functions=[to_first, third])
    with pytest.raises(Died):
        await rerun(path, Script(calls("to_second"), calls("to_first"), calls("to_second"), dies()), first)
    response = await rerun(path, Script(calls("transfer_to_third"), says("Done")), first)
    assert response.agent is third
    assert [message["sender"] for message in response.messages if message["role"] == "assistant"] == [
        *("First", "Second", "First", "Second", "Third")
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["Hidden", "Twin"])
async def test_a_handoff_that_could_not_be_found_again(path: Path, name: str) -> None:
    """An agent that is nowhere to be seen, or shares its name, is refused at the handoff; once seen, the item goes on."""
    box = [Agent(name=name)]
    twins = [Agent(name="Twin"), Agent(name="Twin")]

    def over() -> Any:
        return getattr(box, "pop")()  # noqa: B009 - what it returns shall not be seen

    first = Agent(name="First", functions=[over, twins[0]])
    with pytest.raises(ConfigurationError, match=f"over handed off to the agent '{name}'.*aswarm graph") as caught:
        await rerun(path, Script(calls("over")), first)
    assert caught.value.response is not None and caught.value.response.messages[-1]["role"] == "tool"
    if name == "Hidden":
        with pytest.raises(
            ConfigurationError, match=r"the journal has a handoff to the agent 'Hidden', .*no such agent"
        ):
            await rerun(path, Script(), first)
    seen = Agent(name="First", functions=[over, Agent(name="Hidden"), twins[0]])
    with pytest.raises(ConfigurationError, match="other tools"):
        await rerun(path, Script(says("Done")), seen)


@pytest.mark.asyncio
async def test_an_agent_that_is_gone_does_not_take_the_results(path: Path) -> None:
    """A finished item whose last agent cannot be found any more is given back without it."""

    def over() -> Agent:
        return second

    second = Agent(name="Second")
    await rerun(path, Script(calls("over"), says("Done")), Agent(functions=[over]))
    again = await rerun(path, Script(), Agent())
    assert (again.agent, again.text) == (None, "Done")


@pytest.mark.asyncio
async def test_agents_made_for_each_item(path: Path) -> None:
    """Every item may have an agent of its own."""
    async with Journal.open(path, BATCH) as journal:
        for number in range(70):
            entry = await journal.begin(f"{number}", Agent(), "Hi")
            assert entry.agents.find("Agent") is entry.agents.start


# --- a disk that fails ---


def breaks(journal: Journal) -> Callable[..., Any]:
    """From here on nothing can be written."""

    def work(*_: object) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    journal._writer._file.work = work  # type: ignore[method-assign]
    return work


@pytest.mark.asyncio
async def test_a_disk_that_is_full(path: Path) -> None:
    """Where nothing can be recorded no function runs, the run ends with what is wrong, and so does whatever comes later."""
    notes: list[str] = []
    agent = Agent(functions=[noting(notes, "one")])
    async with Journal.open(path, BATCH) as journal:
        entry = await journal.begin("a", agent, "Hi")
        breaks(journal)
        with pytest.raises(RunError, match="the journal cannot be written: database or disk is full"):
            await run(entry, Script(calls("one")), agent)
        with pytest.raises(RunError, match="disk is full"):
            await journal.begin("b", agent, "Hi")
    assert notes == []
    assert (await rerun(path, Script(calls("one"), says("Done")), agent)).text == "Done"


@pytest.mark.asyncio
async def test_a_journal_that_is_closed(path: Path) -> None:
    """A closed journal takes nothing, and may be closed again."""
    journal = Journal.open(path, BATCH)
    await journal.aclose()
    await journal.aclose()
    with pytest.raises(RunError, match="the journal is closed"):
        await journal.begin("a", Agent(), "Hi")

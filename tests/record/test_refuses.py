"""What a journal refuses, and its error texts: other batches, other items, other files, a disk that fails."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, RunError
from aswarm._record.journal import Journal
from aswarm._run.options import RunOptions
from tests.support.record.journaled import BATCH, Script, begin, calls, fail_from, kinds, noting, repair, rerun, says

HOLD = """
import sys
from aswarm._runtime.files import SideLock
held = SideLock.acquire(sys.argv[1], 0)
print("held", flush=True)
sys.stdin.read()
"""


async def made(path: Path) -> None:
    """Make a journal with one finished item."""
    await rerun(path, Script(says("Done")), Agent())


# --- files ---


@pytest.mark.asyncio
@pytest.mark.parametrize("fingerprint", [{"agent": "Other"}, {}, {**BATCH, "model": "gpt-5"}])
async def test_the_journal_of_another_batch(path: Path, fingerprint: dict[str, str]) -> None:
    """A journal with another fingerprint is refused, with the name of what differs, and is not changed."""
    await made(path)
    with pytest.raises(
        ConfigurationError, match=r"journal of another batch: its (agent|model) is .*journal of its own"
    ):
        async with Journal(path, fingerprint):
            pass
    assert (await rerun(path, Script(), Agent())).text == "Done"


@pytest.mark.asyncio
async def test_the_journal_of_a_newer_version(path: Path) -> None:
    """A journal of another format is refused, and the error names both formats."""
    await made(path)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(
        ConfigurationError, match=r"written by a newer version of aswarm .its format is 7, this version reads 2"
    ):
        async with Journal(path, BATCH):
            pass


@pytest.mark.asyncio
async def test_a_database_of_another_program(path: Path) -> None:
    """It is refused, and not changed."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="a database of another program, not a journal"):
        async with Journal(path, BATCH):
            pass
    assert path.read_bytes() == before


@pytest.mark.asyncio
async def test_a_file_that_is_no_database(path: Path) -> None:
    """A file of another kind is refused, and not changed."""
    path.write_text("once upon a time, " * 100)
    with pytest.raises(ConfigurationError, match="cannot be opened: file is not a database"):
        async with Journal(path, BATCH):
            pass
    assert path.read_text().startswith("once")


@pytest.mark.asyncio
async def test_a_path_that_leads_nowhere(path: Path) -> None:
    """The error says that the folder is missing."""
    with pytest.raises(
        ConfigurationError,
        match=r"missing.run\.sqlite cannot be opened: No such file or directory: .*A journal needs a folder",
    ):
        async with Journal(path.parent / "missing" / "run.sqlite", BATCH):
            pass


@pytest.mark.asyncio
async def test_a_path_that_cannot_be_written(path: Path) -> None:
    """The error has SQLite's reason."""
    path.mkdir()
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        async with Journal(path, BATCH):
            pass


@pytest.mark.processes
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
            async with Journal(path, BATCH):
                pass
        holder.kill()
    assert (await rerun(path, Script(), Agent())).text == "Done"


@pytest.mark.asyncio
async def test_another_program_has_the_file_open(path: Path) -> None:
    """A program that is no batch, such as a database browser, has no lock beside the file, but one of SQLite's."""
    await made(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as browser:
        browser.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigurationError, match=r"is in use"):
            async with Journal(path, BATCH):
                pass


@pytest.mark.asyncio
async def test_twice_in_one_process(path: Path) -> None:
    """The same holds for two batches of one process."""
    async with Journal(path, BATCH):
        with pytest.raises(ConfigurationError, match="is in use"):
            async with Journal(path, BATCH):
                pass


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["", ":memory:"])
async def test_a_path_that_would_keep_nothing(name: str) -> None:
    """A name that means a database in memory to SQLite is refused; an unset environment variable may give one."""
    with pytest.raises(ConfigurationError, match="journal must be the path of a file"):
        async with Journal(name, BATCH):
            pass


@pytest.mark.asyncio
async def test_a_file_system_without_a_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If SQLite cannot have its write-ahead log, it keeps another mode, and the journal is refused."""

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(statement.replace("= WAL", "= DELETE"), *values)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **more: connect(*given, **more, factory=Connection))
    with pytest.raises(ConfigurationError, match="write-ahead log"):
        async with Journal(path, BATCH):
            pass


@pytest.mark.asyncio
async def test_a_batch_whose_agent_has_no_name_in_utf_8(path: Path) -> None:
    """UTF-8 cannot encode half a surrogate pair."""
    with pytest.raises(ConfigurationError, match=r"cannot be opened: .*surrogates"):
        async with Journal(path, {"agent": "A\ud800"}):
            pass


# --- items ---


@pytest.mark.asyncio
async def test_an_id_that_utf_8_cannot_encode_is_the_error_of_that_item(path: Path) -> None:
    """The journal accepts the other items."""
    async with Journal(path, BATCH) as journal:
        with pytest.raises(ConfigurationError, match="the journal cannot hold the id"):
            await begin(journal, "a\ud800", Agent())
        assert (await begin(journal, "b", Agent())).text == "Done"


@pytest.mark.asyncio
async def test_an_item_with_other_context_variables(path: Path) -> None:
    """An item's own variables identify it; of a value that JSON cannot hold only the type is compared."""
    odd: dict[Any, Any] = {1: "a", "b": 2}
    given: list[tuple[Any, Any, bool]] = [
        ({"user": "alice"}, {"user": "bob"}, False),
        ({"a": 1, "b": {"c"}}, {"b": {"d"}, "a": 1}, True),
        ({"a": object()}, {"a": object()}, True),
        (odd, {"c": 1}, False),
    ]
    async with Journal(path, BATCH) as journal:
        for number, (first, _, _) in enumerate(given):
            await begin(journal, f"{number}", Agent(), own_context=first)
    for number, (_, second, is_same) in enumerate(given):
        expected = nullcontext() if is_same else pytest.raises(ConfigurationError, match="its context variables")
        async with Journal(path, BATCH) as journal:
            with expected:
                await begin(journal, f"{number}", Agent(), own_context=second)


@pytest.mark.asyncio
@pytest.mark.parametrize(("agent", "messages"), [("Agent", "Bye"), ("Other", "Hi")])
async def test_another_item_under_the_same_id(path: Path, agent: str, messages: str) -> None:
    """An item with other messages, or with another agent, is refused; other items are accepted."""
    await made(path)
    async with Journal(path, BATCH) as journal:
        with pytest.raises(
            ConfigurationError, match=r"'a' differs from the item with this id in the journal .*run\.sqlite:"
        ):
            await begin(journal, "a", Agent(name=agent), messages)
        assert (await begin(journal, "b", Agent(), messages)).text == "Done"


@pytest.mark.asyncio
async def test_one_id_twice(path: Path) -> None:
    """Two items of one batch with one id are an error of the second, whether the first is new or not."""
    await made(path)
    async with Journal(path, BATCH) as journal:
        for item in ("a", "new"):
            await begin(journal, item, Agent())
            with pytest.raises(ConfigurationError, match=f"two items of the batch have the id '{item}'"):
                await begin(journal, item, Agent())


@pytest.mark.asyncio
async def test_invalid_messages_are_the_error_of_that_item(path: Path) -> None:
    """Odd messages that are valid have a fingerprint all the same."""
    async with Journal(path, BATCH) as journal:
        with pytest.raises(ConfigurationError, match="messages must be a list"):
            await begin(journal, "a", Agent(), 7)
        with pytest.raises(ConfigurationError, match="half a surrogate pair"):
            await begin(journal, "b", Agent(), "half \ud83d")
        await begin(journal, "c", Agent(), [{"role": "user", "content": [{"type": "x", "data": object()}]}])


# --- a disk that fails ---


@pytest.mark.asyncio
async def test_a_disk_that_is_full(path: Path) -> None:
    """If nothing can be recorded, no function runs; the run, and each later item, ends with the reason."""
    notes: list[str] = []
    agent = Agent(functions=[noting(notes, "one")])
    async with Journal(path, BATCH):
        pass
    fail_from(path, "ToolCallStarted")
    swarm = AsyncSwarm(client=Script(calls("one")), tool_error=lambda failure: notes.append(failure.text) or "")
    async with Journal(path, BATCH) as journal:
        with pytest.raises(RunError, match="the journal cannot be written: disk full") as raised:
            await journal.run("a", RunOptions(agent, "Hi"), swarm._run_to_end)
        assert raised.value.response is not None
        assert [message["role"] for message in raised.value.response.messages] == ["assistant"]  # the call stays open
        with pytest.raises(RunError, match="disk full"):
            await begin(journal, "b", agent)
        assert isinstance(journal.failure, sqlite3.Error)
    assert (notes, kinds(path)) == ([], [])
    repair(path)
    assert (await rerun(path, Script(calls("one"), says("Done")), agent)).text == "Done"


@pytest.mark.asyncio
async def test_a_journal_that_is_closed(path: Path) -> None:
    """A closed journal accepts nothing, and may be closed again."""
    async with Journal(path, BATCH) as journal:
        await journal.aclose()
    with pytest.raises(RunError, match="the journal is closed"):
        await begin(journal, "a", Agent())

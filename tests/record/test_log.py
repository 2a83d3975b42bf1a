"""The transactions of the log: attempts, reading in pieces, and the costs of long logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, RunError
from aswarm._log import conversations
from aswarm._log import runs as log
from aswarm._log.conversations import SCHEMA
from aswarm._log.runs import Ending, LogRow
from aswarm._log.stored import Change, RunRecord
from aswarm._record.entries import now
from aswarm._run.options import RunOptions
from aswarm._sql.databases import memory
from aswarm._sql.transactions import Transaction, single
from aswarm.batch._journal import Journal
from aswarm.runs import Limits, _deleting
from aswarm.testing import ScriptedModel, call


class Log:
    """The transactions of the log on a database in memory."""

    def __init__(self) -> None:
        self.database = memory(SCHEMA)

    async def insert(self, *run_ids: str) -> None:
        for run_id in run_ids:
            record = RunRecord(id=run_id, user="ann", conversation=None, agent=None, status="running", started_ms=1)
            await self.database.run(log.insert, record, "", "me#1", LogRow(0, 0, b"{}"))

    async def count(self, steps: list[None]) -> None:
        """Add to `steps` for each 100 operations of SQLite from now on."""
        await self(single, lambda connection: connection.set_progress_handler(lambda: steps.append(None), 100))

    def __call__(self, function: Any, *arguments: Any, **keywords: Any) -> Any:
        return self.database.run(function, *arguments, **keywords)


@pytest.mark.parametrize("messages", [["two"], [], None])
async def test_a_load_beside_a_write_of_another_process(messages: list[str] | None) -> None:
    """On a server, the write may come between the two queries. The load then reads the conversation again. None: it was deleted."""
    it = Log()

    def edited(base: str, revision: str, texts: list[str]) -> Change:
        history = [{"role": "user", "content": text} for text in texts]
        return Change(base, revision, 0, history, revision, {"by": revision})

    def with_a_write() -> Transaction[Any]:
        loading = conversations.load("c")
        rows = yield next(loading)
        if messages is None:
            yield "DELETE FROM aswarm_message", ()
            yield "DELETE FROM aswarm_conversation", ()
        else:
            yield from conversations.write("c", edited("one", "two", messages), 2)
        while True:
            try:
                statement = loading.send(rows)
            except StopIteration as done:
                return done.value
            rows = yield statement

    await it(conversations.write, "c", edited("", "one", ["one"]), 1)
    stored = await it(with_a_write)
    if messages is None:
        assert stored is None
        return
    assert (stored.revision, stored.agent, stored.context_variables) == ("two", "two", {"by": "two"})
    assert [message["content"] for message in stored.messages] == messages


async def test_only_the_last_attempt_writes() -> None:
    """After the start of another attempt, and after the end, the entries and the end of an attempt are refused."""
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
    """An index finds the number of its last entry."""
    it, steps = Log(), list[None]()
    await it.insert("1")
    for number in range(1, 2_000):
        await it(log.append, "1", 1, LogRow(number, number, b"{}"))
    await it.count(steps)
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
    await it.count(steps)
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


async def test_a_log_is_read_in_pieces() -> None:
    """A piece has a limit of bytes; a reader gets at least one row, however large it is."""
    it = Log()
    await it.insert("1")
    for number in range(5):
        await it(log.append, "1", 1, LogRow(2 * number + 1, 2 * number + 2, b"x" * 200_000))
    for after, firsts in ((0, [1, 3]), (4, [5, 7]), (7, [7, 9]), (10, [])):
        rows, is_active = await it(log.read, "1", after)
        assert ([row.first for row in rows], is_active) == (firsts, True)


async def test_the_kept_logs_have_a_size() -> None:
    """The newest ended runs that fit stay; an active run is not deleted."""
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


async def test_a_closed_journal_accepts_no_item(tmp_path: Path) -> None:
    """It may be closed again."""
    async with Journal(tmp_path / "run.sqlite", {"agent": "Agent"}) as journal:
        await journal._file.aclose()
    swarm = AsyncSwarm(ScriptedModel([]).client())
    with pytest.raises(RunError, match="the journal is closed"):
        await journal.run("a", RunOptions(Agent(), "Hi"), swarm._run_to_end)


async def test_an_item_that_another_program_has_taken(tmp_path: Path) -> None:
    """The function of its call does not run, and the batch cannot go on: its journal is no record of it any more."""
    ran: list[str] = []

    def look() -> str:
        ran.append("look")
        return "seen"

    async with Journal(tmp_path / "run.sqlite", {"agent": "Agent"}) as journal:
        for number, script in enumerate(([call("look")], ["Done."])):
            item = AsyncSwarm(ScriptedModel(script).client())
            take = journal._file.take

            async def taken(*arguments: Any, take: Any = take) -> Any:
                item = await take(*arguments)
                await journal._file.run(single, "UPDATE aswarm_run SET attempt = 7")
                return item

            journal._file.take = taken  # type: ignore[method-assign]
            journal._file.failure = None
            options = RunOptions(Agent(functions=[look]), "Hi")
            with pytest.raises(RunError, match="cannot be written: another program has changed the journal"):
                await journal.run(str(number), options, item._run_to_end)
            journal._file.take = take  # type: ignore[method-assign]
    assert ran == []

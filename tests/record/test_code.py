"""The record of code whose calls wait: a journal keeps no waiting calls, so this test drives the recorder of kept runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from aswarm import Response, tool
from aswarm._record.entries import Entry
from aswarm._record.entry_maker import EntryMaker
from aswarm._record.entry_recorder import EntryRecorder
from aswarm._run.options import RunOptions
from aswarm._tools.directory import AgentDirectory
from tests.support.code.coded import USER, agent_of, swarm_of, unknown


class Log:
    """A log in memory, as JSON."""

    awaits_results = False

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        """Add an entry."""
        self.entries.append(Entry.from_dict(json.loads(entry.to_log())))

    async def commit(self) -> None:
        """Commit."""

    async def finish(self, response: Response | None, error: Exception | None) -> None:
        """Do nothing."""


async def recorded(code: str, functions: list[Any], before: Sequence[Entry] = ()) -> tuple[Log, Response]:
    """Run code with a record. `before`: the entries of an earlier attempt."""
    agent, log, maker = agent_of(*functions), Log(), EntryMaker()
    for entry in (*before, maker.started("r", "c", agent, [USER], context_variables=None)):
        log.add(entry)

    def mismatch(turn: int, parts: str) -> Any:
        raise AssertionError((turn, parts))

    recorder = EntryRecorder(log, maker, AgentDirectory((agent,)), mismatch, recorded=before)
    return log, await swarm_of(code)._run_to_end(RunOptions(agent, [USER], None, run_id="r"), recorder)


async def test_code_that_waits_lists_its_unknown_calls_after_the_death_of_its_process() -> None:
    """The process dies before or after the entry that the code waits, before the end of its run."""

    def late() -> None:
        """Take too long."""

    @tool(approve=True)
    async def gate() -> None:
        """Wait for an approval."""

    code = "try:\n    await late()\nexcept RuntimeError:\n    pass\nawait gate()"
    functions = [tool(timeout=1e-9)(late), gate]
    log, first = await recorded(code, functions)
    waits = next(position for position, entry in enumerate(log.entries) if entry.type == "CallWaiting")
    for end in (waits, waits + 1):
        _, again = await recorded(code, functions, log.entries[:end])
        assert (again.stop, unknown(again)) == (first.stop, unknown(first)) == ("waiting", ["outer.0"])

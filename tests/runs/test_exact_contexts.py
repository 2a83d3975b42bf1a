"""NaN, infinities and any text in the context variables of a kept run."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, tool
from aswarm.conversations import SQLiteStore
from aswarm.runs import LocalRuns, NewRun, Run
from aswarm.testing import ScriptedModel, call

NAME = os.fsdecode(b"caf\xe9.txt")
START = {"mean": math.nan, "all": [math.inf, {"low": -math.inf}], "name": NAME, NAME: "NaN"}


def refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def is_same(left: Any, right: Any) -> bool:
    """Return whether these values are equal, with NaN equal to NaN."""
    return repr(left) == repr(right)


@pytest.mark.processes
async def test_another_process_continues_with_the_same_context(tmp_path: Path) -> None:
    """The context of the start, and the changes of a function; readers get JSON."""
    reached, seen = anyio.Event(), list[Any]()
    first, second = tmp_path / "1.sqlite", tmp_path / "2.sqlite"

    async def measure(context_variables: dict[str, Any]) -> float:
        context_variables["deviation"] = [math.nan, NAME]
        return math.nan

    async def wait(context_variables: dict[str, Any]) -> str:
        seen.append(dict(context_variables))
        if len(seen) == 1:
            reached.set()
            await anyio.sleep_forever()
        return "waited"

    agent = Agent(name="A", functions=[measure, tool(repeatable=True)(wait)])
    script = [call("measure"), call("wait"), "Done."]

    def swarm(number: int) -> AsyncSwarm:
        return AsyncSwarm(ScriptedModel(script[number:]).client())

    async with SQLiteStore(first) as store, LocalRuns(swarm(0), store=store, agents=agent, version="1") as runs:
        new = NewRun("ann", "c", [{"role": "user", "content": "Go"}], run_id="r", context_variables=START)
        run = await runs.start(new)
        await reached.wait()
        with closing(sqlite3.connect(first)) as source, closing(sqlite3.connect(second)) as target:
            source.backup(target)  # what a process leaves that dies now
        await run.cancel("enough")
    async with SQLiteStore(second) as store, LocalRuns(swarm(2), store=store, agents=agent, version="1") as runs:
        other = await runs.get("r", user="ann")
        last = await Run(runs, other).last_entry()
        assert last.type == "RunFinished"
        entries = [entry async for entry in Run(runs, other).entries()]
        stored = await store.load("ann/c")
    assert is_same(seen[0], seen[1])
    assert is_same(seen[1], {**START, "deviation": [math.nan, NAME]})
    assert stored is not None
    assert is_same(stored.context_variables, seen[1])
    shown = [json.loads(entry.to_json().decode(), parse_constant=refuse_constant) for entry in entries]
    assert shown[0]["context_variables"]["mean"] == "nan"
    assert [each["content"] for each in shown if each["type"] == "ToolCallFinished"] == ["nan", "waited"]

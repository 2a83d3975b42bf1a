"""Durable runs for tests: agents whose functions count, and the simulated death of a process."""

from __future__ import annotations

import atexit
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm, current_call, tool
from aswarm.durable import DurableRuns
from aswarm.testing import ScriptedModel


@dataclass
class Shop:
    """Agents for the tests. `slow` and `look` run until `go` is set; `keys`: the keys of the calls, by function."""

    began: anyio.Event = field(default_factory=anyio.Event)
    go: anyio.Event = field(default_factory=anyio.Event)
    keys: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def note(self, name: str) -> None:
        self.keys.setdefault(name, []).append(current_call().key)

    def agents(self) -> list[Agent]:
        async def count(number: int, context_variables: dict[str, Any]) -> str:
            """Count."""
            self.note("count")
            context_variables.setdefault("counted", []).append(number)
            return f"counted {number}"

        async def slow() -> str:
            """Take a while."""
            self.note("slow")
            self.began.set()
            await self.go.wait()
            return "done"

        @tool(repeatable=True)
        async def look() -> str:
            """Look; it may run again."""
            self.note("look")
            self.began.set()
            await self.go.wait()
            return "looked"

        @tool(approve=True)
        async def pay(amount: int) -> str:
            """Pay."""
            self.note("pay")
            return f"paid {amount}"

        clerk = Agent(name="Clerk", functions=[count, slow])
        return [Agent(name="Boss", functions=[count, slow, look, pay, clerk]), clerk]


_template = Path(tempfile.mkdtemp(), "runs.db")
atexit.register(shutil.rmtree, _template.parent, ignore_errors=True)


async def empty_file(path: Path) -> None:
    """Make a file with all tables. They are created once, which is slow, and then copied."""
    if not _template.exists():
        async with durable(path.parent, [], Shop(), url=f"sqlite:///{_template}"):
            pass
    shutil.copyfile(_template, path)


@asynccontextmanager
async def durable(
    folder: Path,
    script: Any,
    shop: Shop,
    *,
    url: str | None = None,
    retry_seconds: float | None = None,
    middleware: Any = (),
    **settings: Any,
) -> AsyncIterator[DurableRuns]:
    """Open durable runs, as one process does, for ten minutes at most.

    `retry_seconds`: in place of the ten seconds for a restart of the server.
    """
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script, cut=4)
    # In two intervals, DBOS must have started a run that it dequeued: otherwise the run is requeued, and is executed twice.
    given: dict[str, Any] = {"version": "1", "failover_seconds": 0.3, "poll_seconds": 0.02, **settings}
    given.setdefault("agents", shop.agents())
    store = url or f"sqlite:///{folder / 'runs.db'}"
    if url is None and not (folder / "runs.db").exists():
        await empty_file(folder / "runs.db")
    with anyio.fail_after(600):
        async with (
            AsyncSwarm(model.client(), middleware=middleware) as swarm,
            DurableRuns(swarm, store=store, **given) as runs,
        ):
            if retry_seconds is not None:
                runs.store._database._retry_seconds = retry_seconds
            yield runs


def die(runs: DurableRuns) -> None:
    """Stop everything here at once without further writes, like a killed process. Leave the block afterwards."""
    for live in runs.registry.live.values():
        live.fence()
    runs.registry.live.clear()
    runs.registry.notifier.drain()
    runs._engine._requeue = lambda run_ids: None  # type: ignore[method-assign]


async def interrupted(folder: Path, script: Any, shop: Shop, **settings: Any) -> None:
    """Start the run "r" in a process that dies while a function runs."""
    async with durable(folder, script, shop, **settings) as runs:
        await runs.start("Boss", "Hi!", {"user": "ann"}, run_id="r")
        await shop.began.wait()
        while any(live.unwritten() for live in runs.registry.live.values()):
            await anyio.sleep(0.01)
        die(runs)


def refuse(runs: DurableRuns, table: str, event: str) -> None:
    """Let the database refuse each change of this kind."""
    with closing(sqlite3.connect(runs.store.path)) as file, file:
        file.execute(
            f"CREATE TRIGGER refused BEFORE {event} ON {table} BEGIN SELECT RAISE(FAIL, 'the disk is full'); END"
        )


def allow(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "runs.db")) as file, file:
        file.execute("DROP TRIGGER refused")

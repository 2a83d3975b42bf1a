"""Runs to test against: implementations of `Runs` by name, and agents whose function waits until a test lets it go.

Another implementation adds a line to `FACTORIES`, and has to pass `tests/serve/test_runs_contract.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, AsyncSwarm, tool
from aswarm.conversations import MemoryStore, SQLiteStore, Store
from aswarm.serve import Entry, Limits, LocalRuns, NewRun, Run, Runs
from aswarm.testing import ScriptedModel


@dataclass
class Place:
    """An open implementation, and the store of its conversations."""

    runs: Runs
    store: Store

    async def start(self, text: str = "Hi!", *, user: str = "ann", conversation: str | None = "c", **more: Any) -> Run:
        """Start a run with a message of a user."""
        new = NewRun(user, conversation, [{"role": "user", "content": text}], **more)
        return Run(self.runs, await self.runs.start(new))

    async def history(self, *, user: str = "ann", conversation: str = "c") -> list[dict[str, Any]]:
        """The messages that the store has."""
        stored = await self.store.load(f"{user}/{conversation}")
        assert stored is not None
        return stored.messages


@dataclass
class Workshop:
    """Agents for the tests: Boss hands off to Clerk. `slow` runs until `go` is set; `erase` asks for an approval."""

    began: anyio.Event = field(default_factory=anyio.Event)
    go: anyio.Event = field(default_factory=anyio.Event)
    erased: list[str] = field(default_factory=list[str])

    def agents(self) -> list[Agent]:
        async def look(number: int) -> str:
            """Look something up."""
            return f"found {number}"

        async def slow() -> str:
            """Take a while."""
            self.began.set()
            await self.go.wait()
            return "done"

        @tool(approve=True)
        async def erase(name: str) -> str:
            """Erase something."""
            self.erased.append(name)
            return f"erased {name}"

        clerk = Agent(name="Clerk", functions=[look, slow])
        return [Agent(name="Boss", functions=[look, slow, erase, clerk]), clerk]


LIMITS = Limits()
Factory = Callable[..., AbstractAsyncContextManager[Place]]


@asynccontextmanager
async def in_memory(
    folder: Path, model: ScriptedModel, workshop: Workshop, limits: Limits = LIMITS
) -> AsyncGenerator[Place]:
    store = MemoryStore()
    async with (
        store,
        AsyncSwarm(model.client()) as swarm,
        LocalRuns(swarm, store, agents=workshop.agents(), limits=limits) as runs,
    ):
        yield Place(runs, store)


@asynccontextmanager
async def in_file(
    folder: Path, model: ScriptedModel, workshop: Workshop, limits: Limits = LIMITS
) -> AsyncGenerator[Place]:
    async with (
        SQLiteStore(folder / "chats.sqlite") as store,
        AsyncSwarm(model.client()) as swarm,
        LocalRuns(swarm, store, agents=workshop.agents(), limits=limits) as runs,
    ):
        yield Place(runs, store)


FACTORIES: dict[str, Factory] = {"memory": in_memory, "sqlite": in_file}


async def entries_of(run: Run, after: int = -1) -> list[Entry]:
    """All entries of a run, once it has ended."""
    return [entry async for entry in run.entries(after)]


def types_of(entries: list[Entry]) -> list[str]:
    """The types of the entries."""
    return [entry.type for entry in entries]

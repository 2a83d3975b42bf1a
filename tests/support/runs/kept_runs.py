"""The implementations of `Runs` to test, by name, and agents whose function waits until a test releases it.

Another implementation adds a line to `FACTORIES`, and has to pass `tests/runs/test_runs_contract.py`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Hold, Resource, current_call, tool
from aswarm.conversations import MemoryStore, PostgresStore, SQLiteStore, Store
from aswarm.runs import Entry, Limits, LocalRuns, NewRun, Run, Runs
from aswarm.testing import ScriptedModel
from tests.support.conversations.stores import emptied_database, empty_schema
from tests.support.sampling import listed


@dataclass
class Place:
    """An open implementation, and the store of its conversations.

    `hands_back`: if a run does not end in time when the process stops, another process continues it.
    """

    runs: Runs
    store: Store
    hands_back: bool = False

    async def start(self, text: str = "Hi!", *, user: str = "ann", conversation: str | None = "c", **more: Any) -> Run:
        """Start a run with a message of a user."""
        new = NewRun(user, conversation, [{"role": "user", "content": text}], **more)
        return Run(self.runs, await self.runs.start(new))

    async def history(self, *, user: str = "ann", conversation: str = "c") -> list[dict[str, Any]]:
        """Return the messages in the store."""
        stored = await self.store.load(f"{user}/{conversation}")
        assert stored is not None
        return stored.messages


@dataclass
class Bench:
    """The context variables of a function."""

    notes: list[str] = field(default_factory=list[str])


@dataclass
class Workshop:
    """Agents for the tests: Boss hands off to Clerk. `slow` runs until `go` is set; `erase` needs an approval.

    `book` asks for a day and then for an hour, in one call.
    """

    began: anyio.Event = field(default_factory=anyio.Event)
    go: anyio.Event = field(default_factory=anyio.Event)
    erased: list[str] = field(default_factory=list[str])
    booked: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])

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

        async def book() -> str:
            """Book a table."""
            decided = current_call()
            if decided.answer is None:
                raise Hold("Which day?")
            if decided.data is None:
                raise Hold("Which hour?", data={"day": decided.answer})
            self.booked.append((decided.data["day"], decided.answer))
            return "Booked."

        async def note(text: str, context_variables: Bench, workshop: Resource[Workshop | None] = None) -> str:
            """Write a note."""
            context_variables.notes.append(text)
            return f"{len(context_variables.notes)} notes, {workshop is self}"

        clerk = Agent(name="Clerk", functions=[look, slow])
        return [Agent(name="Boss", functions=[look, slow, erase, book, note, clerk]), clerk]


LIMITS = Limits()
Server = Callable[[], str]  # starts a PostgreSQL server, and returns its connection string
Factory = Callable[..., AbstractAsyncContextManager[Place]]


@asynccontextmanager
async def in_memory(
    folder: Path, server: Server, model: ScriptedModel, workshop: Workshop, limits: Limits = LIMITS
) -> AsyncGenerator[Place]:
    store = MemoryStore()
    async with (
        store,
        AsyncSwarm(model.client(), resources={"workshop": workshop}) as swarm,
        LocalRuns(swarm, store=store, agents=workshop.agents(), limits=limits) as runs,
    ):
        yield Place(runs, store)


@asynccontextmanager
async def in_file(
    folder: Path, server: Server, model: ScriptedModel, workshop: Workshop, limits: Limits = LIMITS
) -> AsyncGenerator[Place]:
    async with (
        SQLiteStore(folder / "chats.sqlite") as store,
        AsyncSwarm(model.client(), resources={"workshop": workshop}) as swarm,
        LocalRuns(swarm, store=store, agents=workshop.agents(), limits=limits) as runs,
    ):
        yield Place(runs, store)


@asynccontextmanager
async def in_postgres(
    folder: Path, server: Server, model: ScriptedModel, workshop: Workshop, limits: Limits = LIMITS
) -> AsyncGenerator[Place]:
    async with (
        PostgresStore(empty_schema(server())) as store,
        AsyncSwarm(model.client(), resources={"workshop": workshop}) as swarm,
        LocalRuns(swarm, store=store, agents=workshop.agents(), limits=limits) as runs,
    ):
        yield Place(runs, store)


@asynccontextmanager
async def durable_in_file(
    folder: Path, server: Server, model: ScriptedModel, workshop: Workshop, limits: Limits = LIMITS
) -> AsyncGenerator[Place]:
    async with durable(f"sqlite:///{folder / 'runs.db'}", model, workshop, limits) as place:
        yield place


@asynccontextmanager
async def durable_in_postgres(
    folder: Path, server: Server, model: ScriptedModel, workshop: Workshop, limits: Limits = LIMITS
) -> AsyncGenerator[Place]:
    async with durable(emptied_database(server()), model, workshop, limits) as place:
        yield place


@asynccontextmanager
async def durable(url: str, model: ScriptedModel, workshop: Workshop, limits: Limits) -> AsyncGenerator[Place]:
    from aswarm.durable import DurableRuns

    async with (
        AsyncSwarm(model.client(), resources={"workshop": workshop}) as swarm,
        DurableRuns(swarm, agents=workshop.agents(), store=url, version="1", limits=limits) as runs,
    ):
        yield Place(runs, runs.store, hands_back=True)


FACTORIES: dict[str, Factory] = {
    "memory-asyncio": in_memory,
    "memory-trio": in_memory,
    "sqlite-asyncio": in_file,
    "sqlite-trio": in_file,
    "postgres-asyncio": in_postgres,
    "durable_sqlite-asyncio": durable_in_file,
    "durable_postgres-asyncio": durable_in_postgres,
}


def kinds(*durable: str) -> list[Any]:
    """Return the names of the implementations. CI runs the durable ones on these databases only."""
    names = [f"durable_{database}-asyncio" for database in durable]
    return listed(FACTORIES, [name for name in FACTORIES if not name.startswith("durable")] + names)


def also_durable(*databases: str) -> pytest.MarkDecorator:
    """Mark a test that CI runs with durable runs on these databases too; it needs the fixture `kind`."""
    return pytest.mark.parametrize("kind", kinds(*databases), indirect=True)


async def entries_of(run: Run, after: int = -1) -> list[Entry]:
    """Wait for the end of a run, and return all its entries."""
    return [entry async for entry in run.entries(after)]


def types_of(entries: list[Entry]) -> list[str]:
    """Return the types of the entries."""
    return [entry.type for entry in entries]

"""The implementations of `Runs` to test, by name, and agents whose function waits until a test releases it.

Another implementation adds its kinds, and has to pass the tests in `tests/runs/contract`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Hold, Resource, current_call, tool
from aswarm.conversations import MemoryStore, PostgresStore, SQLiteStore, Store
from aswarm.runs import Entry, LocalRuns, NewRun, Run, RunNotFound, Runs
from aswarm.testing import ScriptedModel
from tests.support.conversations.stores import emptied_database, empty_schema
from tests.support.sampling import listed


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

        @tool(may_wait=True)
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


@dataclass
class Place:
    """An open implementation, and the store of its conversations.

    `hands_back`: if a run does not end in time when the process stops, another process continues it.
    """

    runs: Runs
    store: Store
    workshop: Workshop
    hands_back: bool = False

    async def start(self, text: str = "Hi!", *, user: str = "ann", conversation: str | None = "c", **more: Any) -> Run:
        """Start a run with a message of a user."""
        new = NewRun(user, conversation, [{"role": "user", "content": text}], **more)
        return await self.runs.start(new)

    async def history(self, *, user: str = "ann", conversation: str = "c") -> list[dict[str, Any]]:
        stored = await self.store.load(f"{user}/{conversation}")
        assert stored is not None
        return stored.messages

    async def start_slow(self, text: str = "Hi!", **more: Any) -> Run:
        """Start a run, and wait until its function runs."""
        run = await self.start(text, **more)
        await self.workshop.began.wait()
        return run

    async def waiting(self, conversation: str = "c", *, text: str = "Hi!", user: str = "ann", **more: Any) -> Run:
        run = await self.start(text, conversation=conversation, user=user, **more)
        assert (await run.last_entry()).response["stop"] == "waiting"
        return run

    async def has(self, run: Run) -> bool:
        try:
            await self.runs.get(run.id, user=run.record.user)
        except RunNotFound:
            return False
        return True

    async def forget_old(self) -> None:
        """Apply the limits of the kept runs now, and not in the next minute."""
        runs: Any = self.runs
        await runs.registry.deleter.forget_old()


Open: TypeAlias = Callable[
    ..., AbstractAsyncContextManager[Place]
]  # opens an implementation, see `contract/conftest.py`

# Implementation and backend.
KINDS = (
    "memory-asyncio",
    "memory-trio",
    "sqlite-asyncio",
    "sqlite-trio",
    "postgres-asyncio",
    "durable_sqlite-asyncio",
    "durable_postgres-asyncio",
)


@asynccontextmanager
async def opened(
    kind: str, folder: Path, server: Callable[[], str], model: ScriptedModel, workshop: Workshop, **settings: Any
) -> AsyncGenerator[Place]:
    """Open the implementation of a kind. `server`: starts a PostgreSQL server, and returns its connection string."""
    name, settings = kind.partition("-")[0], {"agents": workshop.agents(), **settings}
    middleware = settings.pop("middleware", ())
    async with AsyncSwarm(model.client(), resources={"workshop": workshop}, middleware=middleware) as swarm:
        if name.startswith("durable"):
            from aswarm.durable import DurableRuns

            url = f"sqlite:///{folder / 'runs.db'}" if name == "durable_sqlite" else emptied_database(server())
            async with DurableRuns(swarm, store=url, version="1", **settings) as durable:
                yield Place(durable, durable.store, workshop, hands_back=True)
            return
        store: Any = {
            "memory": MemoryStore,
            "sqlite": lambda: SQLiteStore(folder / "chats.sqlite"),
            "postgres": lambda: PostgresStore(empty_schema(server())),
        }[name]()
        async with store, LocalRuns(swarm, store=store, **settings) as local:
            yield Place(local, store, workshop)


@asynccontextmanager
async def in_file(
    folder: Path, script: Any, workshop: Workshop, *, cut: int = 4, **settings: Any
) -> AsyncGenerator[Place]:
    """Open runs on one file, as another process would do."""
    async with (
        SQLiteStore(folder / "chats.sqlite") as store,
        AsyncSwarm(ScriptedModel(script, cut=cut).client()) as swarm,
        LocalRuns(swarm, store=store, agents=workshop.agents(), **settings) as runs,
    ):
        yield Place(runs, store, workshop)


@asynccontextmanager
async def in_memory(script: Any, workshop: Workshop, **settings: Any) -> AsyncGenerator[Place]:
    async with (
        AsyncSwarm(ScriptedModel(script).client()) as swarm,
        LocalRuns(swarm, agents=workshop.agents(), **settings) as runs,
    ):
        yield Place(runs, runs.store, workshop)


def elsewhere(run: Run, place: Place) -> Run:
    """Return the same run, as the other process knows it."""
    return Run(place.runs, run.record)


def reading(run: Run) -> AbstractContextManager[Any]:
    """Count a reader of the run during the block."""
    return run._registry.notifier.reading(run.record)


def kinds(*durable: str) -> list[Any]:
    """Return the names of the implementations. CI runs the durable ones on these databases only."""
    names = [f"durable_{database}-asyncio" for database in durable]
    return listed(KINDS, [name for name in KINDS if not name.startswith("durable")] + names)


def also_durable(*databases: str) -> pytest.MarkDecorator:
    """Mark a test that CI runs with durable runs on these databases too; it needs the fixture `kind`."""
    return pytest.mark.parametrize("kind", kinds(*databases), indirect=True)


async def entries_of(run: Run, after: int = -1) -> list[Entry]:
    """Wait for the end of a run, and return all its entries."""
    return [entry async for entry in run.entries(after)]


def types_of(entries: list[Entry]) -> list[str]:
    return [entry.type for entry in entries]

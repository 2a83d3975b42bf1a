"""A caller of `Runs` that is cancelled at one of its transactions, and runs that work with each implementation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import anyio

from aswarm import Agent, AsyncSwarm, tool
from aswarm._runtime.backend import scheduler
from aswarm._sql.database import Database
from aswarm.conversations import MemoryStore, SQLiteStore
from aswarm.runs import LocalRuns, NewRun, Run, Runs
from aswarm.testing import ScriptedModel, call
from tests.support.runs.own_executors import OneAfterAnother

How = Literal["scope", "task"]
When = Literal["before", "after"]
_cut: ContextVar[Cut | None] = ContextVar("_cut", default=None)


@dataclass
class Cut:
    """Cancels the caller before its transaction `number`, or after the commit and before the caller knows of it.

    `how`: with a scope of anyio, or with a plain `task.cancel()`, which ignores shields. `is_done`: whether it has cancelled.
    """

    number: int
    when: When
    how: How
    is_done: bool = False
    cancel: Callable[[], object] = lambda: None

    async def call(self, operation: Callable[[], Awaitable[object]]) -> None:
        """Call the operation and cancel it."""
        if self.how == "task":
            task = asyncio.create_task(self._call(operation))
            self.cancel = task.cancel
            with suppress(asyncio.CancelledError):
                await task
        else:
            with anyio.CancelScope() as scope:
                self.cancel = scope.cancel
                await self._call(operation)

    async def _call(self, operation: Callable[[], Awaitable[object]]) -> None:
        token = _cut.set(self)  # the tasks that the operation starts have it too
        try:
            await operation()
        finally:
            self.number = 0
            _cut.reset(token)

    def hits(self) -> bool:
        """Count a transaction, and return whether to cancel at it."""
        self.number -= 1
        self.is_done |= self.number == 0
        return self.number == 0


def hook(database: Database) -> None:
    """Let the cut of the current caller count the transactions of a database."""
    submit = database.submit

    async def cut_submit(make: Any, done: Any = None, **flags: bool) -> Any:
        cut = _cut.get()
        if cut is None or not cut.hits():
            return await submit(make, done, **flags)
        call_soon = scheduler()

        def cancel(job: Any) -> None:
            if done is not None:
                done(job)
            call_soon(cut.cancel)

        if cut.when == "before":
            cut.cancel()
        return await submit(make, done if cut.when == "before" else cancel, **flags)

    database.submit = cut_submit  # type: ignore[method-assign]


class PausedQueue(OneAfterAnother):
    """Executes the queued runs after `go`, all at once."""

    go: anyio.Event

    async def open(self, stack: AsyncExitStack) -> None:
        self.go = anyio.Event()
        await super().open(stack)

    async def _work(self) -> None:
        await self.go.wait()
        while True:
            for record in reversed(await self.records(status="queued")):
                attempt = await self.take(record.id, is_queued=True)
                if attempt is not None and attempt.has_started:
                    self.tasks.start_soon(attempt.execute)
            await anyio.sleep(0.005)


@dataclass
class World:
    """Runs of one process, and the gate of its slow function."""

    runs: Runs
    gate: anyio.Event = field(default_factory=anyio.Event)

    async def start(self, conversation: str, text: str = "Hi!", **more: Any) -> Run:
        return await self.runs.start(NewRun("ann", conversation, text, **more))

    async def waiting(self, conversation: str) -> Run:
        """Return a run that waits for an approval."""
        run = await self.start(conversation, "ask")
        await run.wait()
        return run

    async def slow(self, conversation: str) -> Run:
        """Return a run whose function waits for the gate."""
        run = await self.start(conversation, "slow")
        async with aclosing(run.entries()) as entries:
            async for entry in entries:
                if entry.type == "ToolCallStarted":
                    break
        return run

    async def settle(self) -> None:
        """Let all runs end, and check that nothing of them is left."""
        self.gate.set()
        with anyio.fail_after(20):
            for record in await self.runs.list(user="ann"):
                ended = await (await self.runs.get_run(record.id, user="ann")).wait()
                assert not ended.is_running
            registry = self.runs.registry
            while registry.live or registry.starts:
                await anyio.sleep(0.001)


def answer(request: Any) -> Any:
    last = request.messages[-1]
    if last["role"] == "user" and last["content"] in ("ask", "slow"):
        return call(last["content"])
    return "Done."


def agents(gate: Callable[[], anyio.Event]) -> list[Agent]:
    @tool(approve=True)
    async def ask() -> str:
        """Ask."""
        return "asked"

    async def slow() -> str:
        """Wait."""
        await gate().wait()
        return "waited"

    return [Agent(name="Boss", functions=[ask, slow])]


@asynccontextmanager
async def world(kind: str, folder: Path, **settings: Any) -> AsyncGenerator[World]:
    """Open the runs of a kind: "local" or "queue", and "memory" or "sqlite"; or "durable" or "client"."""
    made: World
    executor, _, place = kind.partition(" ")
    settings = {"agents": agents(lambda: made.gate), **settings}
    async with AsyncSwarm(ScriptedModel(answer).client()) as swarm, AsyncExitStack() as stack:
        if executor in ("durable", "client"):
            from aswarm.durable import DurableRuns

            settings |= {"store": f"sqlite:///{folder / 'runs.db'}", "version": "1", "poll_seconds": 0.02}
            runs: Runs = DurableRuns(swarm, concurrency=50 if executor == "durable" else 0, **settings)
        else:
            store = MemoryStore() if place == "memory" else SQLiteStore(folder / "runs.sqlite")
            kept = await stack.enter_async_context(store)
            runs = (LocalRuns if executor == "local" else PausedQueue)(swarm, store=kept, version="1", **settings)
        hook(runs._database)
        made = World(runs)
        await stack.enter_async_context(runs)
        yield made

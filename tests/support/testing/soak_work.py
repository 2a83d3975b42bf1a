"""The work of a soak besides the service: conversations, durable runs, batches, MCP sessions and blocking scripts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from openai import AsyncOpenAI, OpenAI

from aswarm import Agent, AsyncSwarm, OpenCall, Reply, Response, RunError, Swarm
from aswarm.batch import Item
from aswarm.conversations import Conflict, Conversation, PostgresStore, SQLiteStore
from aswarm.durable import DurableRuns
from aswarm.mcp import MCPServer
from aswarm.runs import RequestRefused
from tests.support.testing.soak_agents import action, look_up
from tests.support.testing.soak_day import Day


def decisions(day: Day, waiting: Sequence[OpenCall]) -> dict[str, Any]:
    """Return a decision for each call that waits."""
    return {call.id: Reply("yes") if call.name == "ask" else day.chance(0.7) for call in waiting}


class Chats:
    """Conversations in a store, without a service. `note`: gets each response."""

    def __init__(
        self,
        day: Day,
        label: str,
        store: SQLiteStore | PostgresStore,
        swarm: AsyncSwarm,
        agents: list[Agent],
        note: Callable[[Response], None],
    ) -> None:
        self._day = day
        self._label = label
        self._store = store
        self._swarm = swarm
        self._agents = agents
        self._note = note
        self._number = 0

    def _chat(self, name: str) -> Conversation:
        return self._store.conversation(name, self._swarm, agent=self._agents[0], agents=self._agents)

    async def chat(self) -> None:
        """A few messages to one conversation, some of them at once."""
        self._number += 1
        name, day = f"{self._label}/{self._number}", self._day
        chat = self._chat(name)
        for _ in range(day.rand.randrange(1, 4)):
            await self._turn(chat)
        if day.chance(0.2):
            async with asyncio.TaskGroup() as group:
                for _ in range(2):
                    group.create_task(self._turn(chat))
        if day.chance(0.2) and (stored := await chat.load()).messages:
            fork = await chat.fork(f"{name}/fork", until=day.rand.randrange(len(stored.messages)))
            await self._turn(fork)
        if day.chance(0.2):
            await self._store.delete(name)

    async def _turn(self, chat: Conversation) -> None:
        try:
            response = await self._say(chat, action(self._day.rand))
            for _ in range(3):
                if response is None or not response.open_calls or self._day.chance(0.25):
                    break
                stored = await chat.load()  # another message at the same time may have closed the calls
                if not stored.open_calls:
                    break
                response = await chat.resume(decisions(self._day, stored.open_calls), revision=stored.revision)
                self._note(response)
        except Conflict:
            self._day.counts[f"{self._label}: conflicts"] += 1
        except RunError as error:
            self._day.counts[f"{self._label}: {type(error).__name__}"] += 1

    async def _say(self, chat: Conversation, text: str) -> Response | None:
        day = self._day
        patience = day.rand.randrange(1, 15) if day.chance(0.25) else 1_000_000
        if day.chance(0.3):
            with anyio.move_on_after(day.rand.random() if day.chance(0.2) else 60):
                response = await chat.run(text)
                self._note(response)
                return response
            day.counts[f"{self._label}: cancelled"] += 1
            return None
        async with chat.stream(text) as run:
            async for _ in run:
                patience -= 1
                if not patience:
                    day.counts[f"{self._label}: left"] += 1
                    return None
        self._note(run.response)
        return run.response

    async def purge(self) -> None:
        """Delete old conversations."""
        self._day.counts[f"{self._label}: purged"] += await self._store.purge(older_than_seconds=2 * self._day.hour)


class Durable:
    """Durable runs: clients that wait, answer, cancel or forget; batches over the queue; and the operator, who purges."""

    def __init__(self, day: Day, runs: DurableRuns) -> None:
        self._day = day
        self._runs = runs
        self._number = 0

    async def ticket(self) -> None:
        """One run, and sometimes a later run of its conversation."""
        self._number += 1
        day, name = self._day, f"ticket-{self._number}"
        run = await self._runs.start("desk", action(day.rand), run_id=name)
        with suppress(RequestRefused, RunError):
            if day.chance(0.08):
                await asyncio.sleep(day.rand.random())
                await run.cancel()
                day.counts["durable: cancels"] += 1
                return
            if day.chance(0.3):
                async for _ in run.entries():
                    if day.chance(0.1):
                        break
            if day.chance(0.1):
                return
            response = await run.result()
            for _ in range(3):
                if not response.open_calls or day.chance(0.3):
                    break
                run = await run.answer(decisions(day, response.open_calls))
                response = await run.result()
                day.counts["durable: answers"] += 1
            if day.chance(0.2):
                again = await self._runs.start("desk", action(day.rand), conversation=name)
                await again.result()

    async def batch(self) -> None:
        """A batch over the queue."""
        self._number += 1
        ids = [f"map-{self._number}-{each}" for each in range(5)]
        items = [action(self._day.rand, "slow") for _ in ids]
        async for run in self._runs.map("desk", items, run_ids=ids):
            self._day.counts[f"durable: {run.record.status}"] += 1

    async def operate(self) -> None:
        """Cancel the runs that waited too long, and purge."""
        before = (time.time() - 2 * self._day.hour) * 1000
        for record in await self._runs.records(status="waiting", limit=10_000):
            if (record.ended_ms or 0) < before:
                await self._runs.cancel(record.id, user=record.user)
                self._day.counts["durable: expired"] += 1
        self._day.counts["durable: purged"] += await self._runs.purge(older_than_seconds=2 * self._day.hour)
        await self._runs.store.purge(older_than_seconds=2.5 * self._day.hour)


class Batches:
    """Batches with a journal in a folder. Half of them are interrupted and run again."""

    def __init__(self, day: Day, folder: Path, swarm: AsyncSwarm, agent: Agent) -> None:
        self._day = day
        self._folder = folder
        self._swarm = swarm
        self._agent = agent
        self._number = 0

    async def batch(self) -> None:
        """One batch, whose journal is deleted when its outcomes are stored."""
        self._number += 1
        path = self._folder / f"{self._number}.sqlite"
        items = [Item(action(self._day.rand), id=str(each)) for each in range(12)]
        patience = self._day.rand.randrange(12) if self._day.chance(0.5) else 0
        for most in (patience, 1_000) if patience else (1_000,):
            async with self._swarm.batch(self._agent, items, concurrency=4, journal=path) as outcomes:
                async for outcome in outcomes:
                    self._day.counts["batches: failed items" if outcome.error else "batches: items"] += 1
                    most -= 1
                    if not most:
                        self._day.counts["batches: interrupted"] += 1
                        break
        for each in self._folder.glob(f"{path.name}*"):
            each.unlink()


class Sessions:
    """MCP sessions with the agents of this process, and scripts with the blocking `Swarm`."""

    def __init__(self, day: Day, mcp: str, model: str, swarm: AsyncSwarm) -> None:
        self._day = day
        self._mcp = mcp
        self._model = model
        self._swarm = swarm

    async def session(self) -> None:
        """Open a session, use its tools, and close it."""
        async with MCPServer(self._mcp, prefix="served_", timeout=10) as server:
            agent = Agent(name="client", functions=[*server.functions])
            for _ in range(2):
                with suppress(RunError):
                    await self._swarm.run(agent, "served 7")

    async def script(self) -> None:
        """A run of the blocking `Swarm` in a thread."""

        def run() -> None:
            with OpenAI(base_url=self._model, api_key="none", timeout=3) as client, Swarm(client) as swarm:
                with suppress(RunError):
                    swarm.run(Agent(functions=[look_up]), "look_up 7")
                with suppress(RunError):
                    for _ in swarm.run(Agent(functions=[look_up]), "look_up 7", stream=True):
                        pass

        await asyncio.to_thread(run)

    async def visitor(self) -> None:
        """A swarm and a client for one run, as in a serverless function."""
        async with AsyncOpenAI(base_url=self._model, api_key="none", timeout=3) as client, AsyncSwarm(client) as swarm:
            with suppress(RunError):
                await swarm.run(Agent(functions=[look_up]), "look_up 7")


Work = Callable[[], Awaitable[object]]

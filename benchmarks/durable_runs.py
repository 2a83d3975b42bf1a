"""Figures of durable runs: `python benchmarks/durable_runs.py CONVERSATIONS AT_ONCE [postgresql://...]`.

The same conversations without durability, on a SQLite file, and on PostgreSQL if its URL is given (an empty database). Each has
three completions of 20 ms and five calls of functions of 10 ms, of which three run together: eight steps. Printed are conversations
and steps in a second, and the CPU of this process for a step. Then, on the SQLite file: how long opening takes with 10,000 runs
that wait for an approval, and what memory they take. Nothing else should run on the machine.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aswarm import Agent, AsyncSwarm, tool
from aswarm.durable import DurableRuns
from aswarm.testing import Answer, Request, ScriptedModel, call

STEPS = 8
WAITING = 10_000


async def work(number: int, context_variables: dict[str, Any]) -> str:
    """Take 10 ms."""
    await asyncio.sleep(0.01)
    return f"worked {number}"


@tool(approve=True)
async def pay() -> str:
    """Pay."""
    return "paid"


AGENT = Agent(name="Worker", functions=[tool(work, concurrent=True), pay])


def answer(request: Request) -> Any:
    """Three calls, two calls, an answer; or one that waits."""
    messages = request.body["messages"]
    if messages[-1]["content"] == "Pay!":
        return call("pay")
    turn = sum(message["role"] == "assistant" for message in messages)
    calls = {0: [1, 2, 3], 1: [4, 5]}.get(turn)
    if calls is None:
        return Answer("Done.", pause=0.02)
    return [call("work", number=number) for number in calls]


def swarm() -> AsyncSwarm:
    """A swarm with the model of these figures."""
    return AsyncSwarm(ScriptedModel(answer).client())


async def plain(total: int, at_once: int) -> None:
    """Without durability."""
    room = asyncio.Semaphore(at_once)
    async with swarm() as runner:

        async def one() -> None:
            async with room:
                await runner.run(AGENT, "Go!")

        await asyncio.gather(*(one() for _ in range(total)))


async def durable(url: str, total: int, at_once: int) -> None:
    """With it."""
    async with (
        swarm() as runner,
        DurableRuns(runner, agents=AGENT, store=url, version="1", concurrency=at_once) as runs,
    ):
        names = [f"run-{number}" for number in range(total)]
        async for _ in runs.map("Worker", ["Go!"] * total, run_ids=names, concurrency=2 * at_once):
            pass


async def measured(name: str, work: Any, total: int) -> None:
    """Print a line."""
    cpu, wall = time.process_time(), time.perf_counter()
    await work
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    steps = total * STEPS
    print(
        f"{name:12} {total / wall:8.1f} conversations/s {steps / wall:9.1f} steps/s {1e3 * cpu / steps:8.2f} ms CPU/step"
    )


async def waiting(url: str, total: int) -> None:
    """Runs that wait for an approval: what a process has of them."""
    async with swarm() as runner, DurableRuns(runner, agents=AGENT, store=url, version="1", concurrency=50) as runs:
        async for _ in runs.map("Worker", ["Pay!"] * total, run_ids=lambda at: f"waiting-{at}", concurrency=100):
            pass
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    async with swarm() as runner, DurableRuns(runner, agents=AGENT, store=url, version="1") as runs:
        opened = time.perf_counter() - began
        print(
            f"{total} waiting runs: opened in {opened:.2f} s, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before} kB more"
        )
        run = await runs.run("waiting-0")
        (left,) = (await run.result()).waiting
        await (await run.answer({left.id: False})).wait()


async def main(total: int, at_once: int, postgres: str | None, waits: int = WAITING) -> None:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder, 'runs.db')}"
        await measured("none", plain(total, at_once), total)
        await measured("SQLite", durable(url, total, at_once), total)
        if postgres is not None:
            await measured("PostgreSQL", durable(postgres, total, at_once), total)
        await waiting(url, waits)


if __name__ == "__main__":
    given = sys.argv[1:]
    asyncio.run(main(int(given[0]), int(given[1]), given[2] if len(given) > 2 else None, *map(int, given[3:])))  # noqa: PLR2004

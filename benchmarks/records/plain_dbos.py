"""CPU of a durable run, its start included, compared with a plain DBOS workflow of ten step records.

The run has four completions and three calls. A step of the workflow returns a message of the size of a completion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import common

_RUNS, _AT_ONCE, _STEPS = 100, 10, 10


async def cpu(once: Callable[[], Awaitable[object]]) -> float:
    """Return the milliseconds of CPU of one call."""
    from instruments import Meter  # noqa: PLC0415 - of the other benchmarks

    for _ in range(5):
        await once()
    meter, room = Meter(), asyncio.Semaphore(_AT_ONCE)

    async def one() -> None:
        async with room:
            await once()

    await asyncio.gather(*(one() for _ in range(_RUNS)))
    return 1e3 * meter.read()[0] / _RUNS


async def aswarm(url: str) -> float:
    """Measure durable runs."""
    async with common.durable(url, common.Model()) as runs:

        async def once() -> None:
            await (await runs.start("guide", common.QUESTION)).result()

        return await cpu(once)


async def dbos(url: str) -> float:
    """Measure workflows."""
    from dbos import DBOS  # noqa: PLC0415 - only here
    from durable_worker import launch  # noqa: PLC0415 - as above

    launch(url)

    @DBOS.step()
    async def step(number: int) -> dict[str, Any]:
        return {"role": "assistant", "content": common.ANSWER, "number": number}

    @DBOS.workflow()
    async def workflow(question: str) -> str:
        return question + str([await step(number) for number in range(_STEPS)])

    DBOS.launch()
    found = await cpu(lambda: workflow(common.QUESTION))
    DBOS.destroy()
    return found


def measure(given: Any) -> None:
    """Print three lines for each store."""
    with common.databases() as made:
        for store in common.STORES:
            found: dict[str, list[float]] = {"aswarm": [], "dbos": []}
            for turn in range(given.rounds):
                for name in list(found)[:: 1 if turn % 2 == 0 else -1]:
                    found[name].append(common.child(f"plain_dbos:{name}", made.empty(store)))
            common.line(f"CPU of a durable run, ms, {store}", found["aswarm"], 1)
            common.line(f"CPU of a DBOS workflow with {_STEPS} steps, ms, {store}", found["dbos"], 1)
            ratios = [ours / plain for ours, plain in zip(found["aswarm"], found["dbos"], strict=True)]
            common.line(f"- ratio, {store}", ratios, 2)

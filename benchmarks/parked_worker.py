"""Parks conversations in this process, answers them, and prints a JSON object. `parked.py` starts it.

    python parked_worker.py PLACE MODEL_URL FOLDER CONVERSATIONS AT_ONCE TRACED      TRACED: "traced" or "resident"

A parked conversation is a run that waits for the approval of its call. Each conversation belongs to another user.
"""

# ruff: noqa: PLC0415 - a process imports only the place that it measures
from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from clients import openai_client
from instruments import Meter, control, resident, trim
from scenario import ANSWER, QUESTION, TALLY, get_weather

from aswarm import Agent, AsyncSwarm, tool

CALL = "call_0_0"  # the server gives each call this id
WARM = 200  # conversations before the measurement, which fill the caches
IDLE = 10.0  # seconds
AGENT = Agent(name="desk", model="fake", functions=[tool(approve=True)(get_weather)])


class Place(Protocol):
    """Where the conversations wait."""

    async def park(self, number: int) -> None:
        """Start a conversation, and wait until its call waits for an approval."""
        ...

    async def answer(self, number: int) -> str:
        """Approve the call, and return the text of the answer."""
        ...

    async def waiting(self) -> int:
        """Return the number of conversations that wait."""
        ...


class InVariables:
    """Keeps the messages of each conversation in a dict of the program. They are lost with the process."""

    def __init__(self, swarm: AsyncSwarm) -> None:
        self._swarm, self._kept = swarm, dict[int, Any]()

    async def park(self, number: int) -> None:
        """Keep the messages of the response."""
        self._kept[number] = (await self._swarm.run(AGENT, QUESTION)).messages

    async def answer(self, number: int) -> str:
        """Continue the run."""
        messages = [{"role": "user", "content": QUESTION}, *self._kept.pop(number)]
        return (await self._swarm.run(AGENT, messages, resume={CALL: True})).text

    async def waiting(self) -> int:
        """Count the kept conversations."""
        return len(self._kept)


class InRuns:
    """Keeps the runs in a store: `LocalRuns` or `DurableRuns`. The program keeps nothing."""

    def __init__(self, runs: Any) -> None:
        self._runs = runs

    async def park(self, number: int) -> None:
        """Start a run."""
        run = await self._runs.start(AGENT, QUESTION, run_id=f"run-{number}", user=f"user-{number}")
        await run.wait()

    async def answer(self, number: int) -> str:
        """Look up the run, as a request of a user does, and answer it."""
        run = await self._runs.get_run(f"run-{number}", user=f"user-{number}")
        return str((await (await run.answer({CALL: True})).result()).text)

    async def waiting(self) -> int:
        """Count the runs that wait."""
        return len(await self._runs.records(status="waiting", limit=1_000_000))


@asynccontextmanager
async def opened(name: str, url: str, folder: Path, at_once: int) -> AsyncIterator[Place]:
    """Yield a place by its name."""
    from aswarm.runs import LocalRuns

    async with AsyncSwarm(client=openai_client(url, at_once)) as swarm:
        if name == "variables":
            yield InVariables(swarm)
            return
        if name == "durable":
            from aswarm.durable import DurableRuns

            runs: Any = DurableRuns(
                swarm, agents=AGENT, store=f"sqlite:///{folder}/runs.db", version="1", concurrency=at_once
            )
        else:
            runs = LocalRuns(swarm, agents=AGENT, store=None if name == "memory" else folder / "runs.db")
        async with runs:
            yield InRuns(runs)


async def each(work: Callable[[int], Awaitable[Any]], numbers: Iterable[int], at_once: int) -> set[Any]:
    """Do the work for each number, `at_once` at a time. Returns the different results."""
    left, found = iter(numbers), set[Any]()

    async def some() -> None:
        for number in left:
            found.add(await work(number))

    await asyncio.gather(*(some() for _ in range(at_once)))
    return found


async def settle() -> int:
    """Free what is free, and return the resident memory in bytes."""
    await asyncio.sleep(1)
    trim()
    return resident()


async def answer_all(place: Place, numbers: list[int], at_once: int) -> tuple[float, float]:
    """Answer conversations, and return the CPU seconds and the seconds. Raises RuntimeError for a wrong answer."""
    meter = Meter()
    answers = await each(place.answer, numbers, at_once)
    if not all(ANSWER.startswith(answer.strip()) for answer in answers):  # a streamed answer has ten words
        raise RuntimeError(f"the answers were {answers}")
    return meter.read()


async def measure(place: Place, folder: Path, total: int, at_once: int, *, traced: bool) -> dict[str, float]:
    """Park all conversations, do nothing for some seconds, and answer all in a random order."""
    await each(place.park, range(-WARM, 0), at_once)
    await answer_all(place, [*range(-WARM, 0)], at_once)
    if traced:
        tracemalloc.start()
    size, before, traced_before, meter = stored(folder), await settle(), traced_bytes(), Meter()
    await each(place.park, range(total), at_once)
    parking = meter.read()
    waiting = await place.waiting()
    after, traced_after, size_after = await settle(), traced_bytes(), stored(folder)
    meter = Meter()
    await asyncio.sleep(IDLE)
    idle = meter.read()[0] / IDLE
    order = random.Random(0).sample(range(total), total)  # noqa: S311 - an order of people
    answering = await answer_all(place, order, at_once)
    peak, left = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, await settle()
    check(total, waiting, await place.waiting())
    return {
        "resident": (after - before) / total, "traced": (traced_after - traced_before) / total,
        "stored": (size_after - size) / total, "parking_cpu": parking[0], "parking": parking[1],
        "answering_cpu": answering[0], "answering": answering[1], "idle": idle,
        "before": before, "after": after, "left": left, "peak": peak,
    }  # fmt: skip


def check(total: int, waiting: int, left: int) -> None:
    """Raise RuntimeError if a conversation was not parked, or was not answered once."""
    calls = TALLY.calls["get_weather"] - WARM
    if (waiting, left, calls) != (total, 0, total):
        raise RuntimeError(f"{waiting} of {total} conversations were parked, {left} still wait; {calls} calls ran")


def traced_bytes() -> int:
    """Return the bytes of the objects of Python since the start of the trace."""
    return tracemalloc.get_traced_memory()[0]


def stored(folder: Path) -> int:
    """Return the bytes of the database, without its write-ahead log."""
    return sum(path.stat().st_size for path in folder.glob("*.db"))


async def main(name: str, model: str, folder: str, total: str, at_once: str, how: str) -> None:
    """Measure one place, and print the result."""
    async with opened(name, f"{model}/script=call/v1", Path(folder), int(at_once)) as place:
        control(model, "/reset")
        found = await measure(place, Path(folder), int(total), int(at_once), traced=how == "traced")
        turns = control(model, "/stats")["turns"]
    expected = int(total) + WARM
    if turns != [expected, 0, 0, expected]:
        raise RuntimeError(f"the server saw {turns} turns")
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

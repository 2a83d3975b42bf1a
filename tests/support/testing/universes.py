"""Random programs for the simulation: agents, scripts, readers and faults, all drawn from the seed of a world.

`python universes.py SECONDS [SEED]` runs them one after another, and prints the number of universes.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from aswarm import Agent, AswarmError, Budget, Hold, RateLimits, Result, tool
from aswarm.conversations import Conversation, MemoryStore
from aswarm.runs import LocalRuns, NewRun, Run
from aswarm.testing import ScriptedAnswer, ScriptedCall, check_history
from aswarm.testing.simulate import Provider, Simulation, World

FAULTS = ("429", "500", "refused", "cut", "ids")
TOOLS = ("plain", "together", "reads", "writes", "slow", "fails", "waits", "unknown")


def plain(number: int) -> str:
    return f"plain {number}"


async def together(number: int) -> str:
    await anyio.sleep(0.001 * number)
    return f"together {number}"


async def reads(number: int, context_variables: Mapping[str, Any]) -> Result:
    await anyio.sleep(0.001)
    return Result(value="read", context_variables={f"read {number}": len(context_variables)})


async def writes(number: int, context_variables: dict[str, Any]) -> str:
    before = context_variables.get("sum", 0)
    await anyio.sleep(0.002)
    context_variables["sum"] = before + number
    return f"wrote {number}"


@tool(timeout=0.01)
async def slow(number: int) -> str:
    await anyio.sleep(0.005 * number)
    return "slow"


async def fails(number: int) -> str:
    await anyio.sleep(0.001)
    raise ValueError(f"failed {number}")


async def waits(number: int) -> str:
    if number > 2:
        raise Hold("approval")
    return "did not wait"


def script(world: World, name: str) -> list[Any]:
    """Draw the answers of a model: up to three turns with calls, then a text."""
    steps: list[Any] = []
    for turn in range(world.draw(f"{name}: turns", 4)):
        calls = []
        for index in range(1 + world.draw(f"{name}: calls", 4)):
            number = world.draw(f"{name}: number", 4)
            which = TOOLS[world.draw(f"{name}: tool", len(TOOLS))]
            calls.append(ScriptedCall(which, f'{{"number": {number}}}', f"{turn}-{index}"))
        steps.append(ScriptedAnswer(calls=calls))
    return [*steps, "finished"] * 3  # a run after a failure goes on


def agent(name: str) -> Agent:
    return Agent(name=name, functions=[plain, together, reads, writes, slow, fails, waits])


async def ends(world: World, work: Awaitable[object]) -> None:
    """Await the run, and accept an error of aswarm or the end of the time."""
    try:
        await work
    except (AswarmError, TimeoutError):
        return


async def several(world: World, one: Callable[[str], Awaitable[object]]) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(1 + world.draw("concurrent runs", 3)):
            group.create_task(ends(world, one(f"run {number}")))


def provider(world: World, name: str) -> Provider:
    return Provider(world, script(world, name), faults=FAULTS, name=name)


# --- programs ---------------------------------------------------------------------------------------------------------


async def exits(world: World) -> None:
    """Runs that are left by their reader, cancelled, or out of time, at any await."""

    async def one(name: str) -> None:
        seconds = (None, 0.001, 0.005, 0.05)[world.draw(f"{name}: timeout", 4)]
        swarm = world.swarm(provider(world, name))
        async with asyncio.timeout(seconds):
            budget = Budget(tool_calls=4) if world.draw(f"{name}: budget", 2) else None
            await world.run(swarm, agent(name), "go", {"start": 1}, name=name, may_leave=True, budget=budget)

    await several(world, one)


async def waiting_calls(world: World) -> None:
    """Runs with calls that wait, which are answered in any order, and some of them rejected."""

    async def one(name: str) -> None:
        swarm, history = world.swarm(provider(world, name)), [{"role": "user", "content": "go"}]
        response = await world.run(swarm, agent(name), history, name=f"{name} start")
        for round_ in range(4):
            if not response.waiting:
                return
            history = [*history, *response.messages]
            decisions = {call.index: "rejected" for call in response.waiting}
            response = await world.run(
                swarm, agent(name), history, response.context_variables, name=f"{name} {round_}", resume=decisions
            )

    await several(world, one)


async def conversations(world: World) -> None:
    """Two conversations with messages that arrive at the same time; each stored history is valid."""
    store = MemoryStore()

    async def one(name: str) -> None:
        swarm = world.swarm(provider(world, name))
        conversation = Conversation(store, f"conversation {world.draw('conversation', 2)}", swarm, agent=agent("agent"))
        async with asyncio.timeout((None, 0.003, 0.02)[world.draw(f"{name}: timeout", 3)]):
            await conversation.run(name)

    async with store:
        await several(world, one)
        for number in range(2):
            swarm = world.swarm(provider(world, "reader"))
            stored = await Conversation(store, f"conversation {number}", swarm, agent=agent("agent")).load()
            check_history(stored.messages, allow_open=True)


async def local_runs(world: World) -> None:
    """Runs of `LocalRuns` that are cancelled at any time, perhaps twice; each log has one end, and it is the last entry."""
    swarm = world.swarm(provider(world, "model"))
    async with LocalRuns(swarm, agents=[agent("agent")]) as runs:

        async def one(name: str) -> None:
            record = await runs.start(NewRun("u", messages=[{"role": "user", "content": "go"}]))
            run = Run(runs, record)
            for _ in range(world.draw(f"{name}: cancels", 3)):
                await world.pause(f"{name}: cancel")
                await run.cancel()
            last = await run.result()
            entries = [entry async for entry in run.entries()]
            assert [entry.is_last for entry in entries].count(True) == 1
            assert entries[-1].seq == last.seq

        await several(world, one)


async def rate_limits(world: World) -> None:
    """Requests under a limit of requests in a minute: no window of a minute has more than the limit."""
    limit, sent = 2 + world.draw("limit", 3), list[float]()

    def answer(_: object) -> str:
        sent.append(anyio.current_time())
        return "finished"

    swarm = world.swarm(Provider(world, answer), limits=RateLimits(requests_per_minute=limit))

    async def one(name: str) -> None:
        for _ in range(1 + world.draw(f"{name}: messages", 3)):
            await world.run(swarm, Agent(), "go", name=f"{name} {len(world.runs)}")

    await several(world, one)
    late = [after for before, after in zip(sent, sent[limit:], strict=False) if after - before < 55]
    assert not late, f"{len(late)} requests came before their minute: {sent}"


async def batches(world: World) -> None:
    """A batch over a provider that rejects and fails: each item has one outcome, and no call starts twice."""
    started: list[str] = []

    @tool(concurrent=True)
    async def charge(item: int) -> str:
        started.append(str(item))
        await anyio.sleep(0.002)
        return "charged"

    def answer(request: Any) -> Any:
        item = next(each["content"] for each in request.messages if each["role"] == "user")
        is_charged = request.messages[-1]["role"] == "tool"
        return "finished" if is_charged else ScriptedCall("charge", f'{{"item": {item}}}', f"charge {item}")

    swarm = world.swarm(Provider(world, answer, faults=["429", "500"]))
    async with swarm.batch(Agent(functions=[charge]), ["1", "2", "3", "4"]) as batch:
        outcomes = [outcome async for outcome in batch]
    assert len(outcomes) == 4
    assert len(started) == len(set(started)), f"calls started twice: {started}"


PROGRAMS = {each.__name__: each for each in (exits, waiting_calls, conversations, local_runs, rate_limits, batches)}
# The programs of stores and limits share state between runs, so that there is no sequential universe to compare with.
SEQUENTIAL = {"exits", "waiting_calls"}


def simulation(name: str) -> Simulation:
    return Simulation(PROGRAMS[name], sequential=name in SEQUENTIAL)


def main(seconds: float, seed: int, names: list[str]) -> None:
    logging.disable()  # runs that fail on purpose
    end, counts = time.monotonic() + seconds, dict.fromkeys(names, 0)
    while time.monotonic() < end:
        for name in names:
            simulation(name).check(seed)
            counts[name] += 1
        seed += 1
    print(f"{sum(counts.values())} universes without a failure: {counts}, up to seed {seed - 1}")


if __name__ == "__main__":
    main(float(sys.argv[1]), int((sys.argv[2:] or ["0"])[0]), sys.argv[3:] or list(PROGRAMS))

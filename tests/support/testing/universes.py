"""Random programs for the simulation: agents, scripts, readers and faults, all drawn from the seed of a world.

`python universes.py SECONDS [SEED [PROGRAM ...]]` runs them one after another, and prints the number of universes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from crashing import CRASHING
from drawn import agent, budget, provider, several
from featured import FEATURED
from featured_crashes import FEATURED_CRASHES
from serving import SERVING

from aswarm import Agent, Answer, Deny, OpenCall, RateLimits, tool
from aswarm.conversations import Conversation, MemoryStore
from aswarm.runs import LocalRuns, NewRun, Run
from aswarm.testing import ScriptedCall, check_history
from aswarm.testing.simulate import Provider, Simulation, SimulationError, World

# --- programs ---------------------------------------------------------------------------------------------------------


async def exits(world: World) -> None:
    """Runs that are left by their reader, cancelled, or out of time, at any await."""

    async def one(name: str) -> None:
        seconds = (None, 0.001, 0.005, 0.05)[world.draw(f"{name}: timeout", 4)]
        swarm = world.swarm(provider(world, name))
        async with asyncio.timeout(seconds):
            limits = budget(world, name)
            await world.run(swarm, agent(name), "go", {"start": 1}, name=name, may_leave=True, budget=limits)

    await several(world, one)


async def waiting_calls(world: World) -> None:
    """Runs with calls that wait, which are approved, denied or answered; some of them stay open."""

    def decided(name: str, call: OpenCall) -> Any:
        if call.name == "needs_approval":
            return (True, Deny("no"), "rejected")[world.draw(f"{name}: decision", 3)]
        return (Answer("yes"), "rejected")[world.draw(f"{name}: answer", 2)]

    async def one(name: str) -> None:
        swarm, history = world.swarm(provider(world, name)), [{"role": "user", "content": "go"}]
        response = await world.run(swarm, agent(name), history, name=f"{name} start")
        for round_ in range(4):
            if not response.waiting:
                return
            history = [*history, *response.messages]
            decisions = {call.index: decided(name, call) for call in response.waiting}
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
            last = await run.last_entry()
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

    swarm = world.swarm(Provider(world, answer), rate_limits=RateLimits(requests_per_minute=limit))

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


PLAIN = (exits, waiting_calls, conversations, local_runs, rate_limits, batches)
PROGRAMS = {**{each.__name__: each for each in PLAIN}, **FEATURED, **FEATURED_CRASHES, **CRASHING, **SERVING}
# The programs of stores and limits share state between runs, so that there is no sequential universe to compare with.
SEQUENTIAL = {"exits", "waiting_calls"}


def simulation(name: str) -> Simulation:
    return Simulation(PROGRAMS[name], sequential=name in SEQUENTIAL, folder=None)


def main(seconds: float, seed: int, names: Sequence[str], counts_file: str | None) -> int:
    """Run universes for some seconds. Returns the number of failures, which are printed."""
    logging.disable()  # runs that fail on purpose
    end, counts, failures = time.monotonic() + seconds, dict.fromkeys(names, 0), list[str]()
    first = seed
    while time.monotonic() < end:
        for name in names:
            try:
                simulation(name).check(seed)
            except SimulationError as error:
                failures.append(f"{name} {seed}")
                print(f"{name}: {error}", flush=True)
            counts[name] += 1
        seed += 1
        if seed == first + 1:  # later universes need not search the modules that are loaded now for garbage
            gc.collect()
            gc.freeze()
        summary = f"{sum(counts.values())} universes, {len(failures)} failures: {counts}, seeds {first} to {seed - 1} {failures}"
        if counts_file is not None:
            Path(counts_file).write_text(f"{summary}\n")
    print(summary)
    return len(failures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--counts", help="a file for the number of universes so far")
    given = parser.parse_args()
    sys.exit(min(1, main(given.seconds, given.seed, given.programs, given.counts)))

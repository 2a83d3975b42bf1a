"""Random programs for the simulation: agents, scripts, readers and faults, all drawn from the seed of a world.

`python universes.py --universes 100 [PROGRAM ...]` runs 100 universes of each program, on all cores, and prints the seeds that
fail. `--seconds 60` runs for a time. `--report --seed 7 PROGRAM` shows a failure: its shrunk schedule and its time line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import anyio

from aswarm import Agent, Deny, OpenCall, RateLimits, Reply
from aswarm.conversations import Conversation, MemoryStore
from aswarm.runs import LocalRuns, NewRun
from aswarm.testing import check_history
from aswarm.testing.simulate import DEFAULT_INVARIANTS, Provider, Simulation, SimulationError, World
from tests.support.testing.crashing import CRASHING, charging
from tests.support.testing.drawn import agent, budget, provider, several
from tests.support.testing.featured import FEATURED
from tests.support.testing.featured_crashes import FEATURED_CRASHES
from tests.support.testing.serving import SERVING

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
        return (Reply("yes"), "rejected")[world.draw(f"{name}: answer", 2)]

    async def one(name: str) -> None:
        swarm, history = world.swarm(provider(world, name)), [{"role": "user", "content": "go"}]
        response = await world.run(swarm, agent(name), history, name=f"{name} start")
        for round_ in range(4):
            if not response.open_calls:
                return
            history = [*history, *response.messages]
            decisions = {call.index: decided(name, call) for call in response.open_calls}
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
            run = await runs.start(NewRun("u", messages=[{"role": "user", "content": "go"}]))
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
    started, charge, answer = charging()
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
    return Simulation(PROGRAMS[name], DEFAULT_INVARIANTS, sequential=name in SEQUENTIAL, folder=None)


def first_failure(name: str, seeds: Iterable[int], where: Path | None = None) -> tuple[int, str] | None:
    """Return the first seed whose universe fails, and the reason. `where`: a file for the seed, in case it does not end."""
    program = simulation(name)
    for seed in seeds:
        if where is not None:
            where.write_text(f"{name}, seed {seed}")
        if (failure := program.failure(World(seed))) is not None:
            causes = getattr(failure, "exceptions", [failure])
            return seed, " ".join(repr(causes[0]).split())
    return None


def run(names: Sequence[str], seeds: range, seconds: float) -> int:
    """Run these universes of each program, for some seconds. Returns the number of failures; prints each with its seed."""
    end, failures, counts = time.monotonic() + seconds, list[str](), dict.fromkeys(names, 0)
    for seed, name in ((seed, name) for seed in seeds for name in names):
        if time.monotonic() > end:
            break
        if (found := first_failure(name, [seed])) is not None:
            failures.append(f"{name} {seed}")
            print(f"{name}, seed {seed}: {found[1]}", flush=True)
        counts[name] += 1
        if seed == seeds.start and name == names[-1]:  # later universes need not search the loaded modules for garbage
            gc.collect()
            gc.freeze()
    print(f"{sum(counts.values())} universes, {len(failures)} failures: {counts}, seeds from {seeds.start} {failures}")
    return len(failures)


def report(name: str, seed: int) -> int:
    """Print the shrunk schedule and the time line of a universe that fails. Returns 1 if it fails."""
    try:
        simulation(name).check(seed)
    except SimulationError as error:
        print(f"{name}: {error}")
        return 1
    print(f"{name}, seed {seed}: no failure")
    return 0


def main(options: argparse.Namespace) -> int:
    logging.disable()  # runs that fail on purpose
    seeds = range(options.seed, options.seed + (options.universes or 1_000_000_000))
    if options.find:
        found = first_failure(options.programs[0], range(options.seed, options.seed + options.find), options.where)
        print("NOT FOUND" if found is None else f"FOUND {found[0]} {found[1]}")
        return 0
    if options.report:
        return sum(report(name, options.seed) for name in options.programs)
    workers = options.processes if options.universes or options.seconds > 10 else 1
    if workers == 1:
        return run(options.programs, seeds, options.seconds)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        parts = [options.programs[start::workers] for start in range(workers)]
        return sum(pool.map(_run_part, parts, [seeds] * workers, [options.seconds] * workers))


def _run_part(names: Sequence[str], seeds: range, seconds: float) -> int:
    logging.disable()
    return run(names, seeds, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--universes", type=int, default=0, help="of each program")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--report", action="store_true", help="shrink the universe of the seed, and print its time line"
    )
    parser.add_argument("--find", type=int, default=0, help="stop at the first failure in so many universes")
    parser.add_argument("--where", type=Path, help="a file for the seed of the current universe")
    parser.add_argument("programs", nargs="*", default=list(PROGRAMS))
    sys.exit(min(1, main(parser.parse_args())))

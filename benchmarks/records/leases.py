"""Live runs that are wrongly declared dead: 600 short runs of two processes that share a SQLite file, on a machine with a load of 15."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import common

_PROCESSES, _RUNS, _LOAD, _SECONDS = 2, 300, 13, 600


def burn() -> None:
    """Use a CPU until the parent stops, at most for some minutes."""
    print("ready", flush=True)
    parent, end = os.getppid(), time.monotonic() + _SECONDS
    while time.monotonic() < end and os.getppid() == parent:
        sum(range(100_000))


async def runs(path: str, slot: int) -> list[Any]:
    """Start all runs at once and wait for them. Returns the status and the reason of each."""
    from aswarm import AsyncSwarm  # noqa: PLC0415 - as in `common`
    from aswarm.conversations import SQLiteStore  # noqa: PLC0415 - as above
    from aswarm.runs import Limits, LocalRuns, NewRun  # noqa: PLC0415 - as above

    limits = Limits(runs_per_user=2 * _RUNS)
    user = f"user{slot}"
    async with (
        AsyncSwarm(client=common.Model(pause=0.01)) as swarm,
        SQLiteStore(path) as store,
        LocalRuns(swarm, store=store, agents=common.AGENTS, limits=limits) as local,
    ):

        async def one(at: int) -> None:
            new = NewRun(user, f"c{slot}-{at}", [{"role": "user", "content": common.QUESTION}], agent="guide")
            await (await local.start(new)).last_entry()

        await asyncio.gather(*(one(at) for at in range(_RUNS)), return_exceptions=True)
        records = await local.list(user=user, limit=2 * _RUNS)
    return [(record.status, record.reason) for record in records]


async def both(path: str) -> list[list[Any]]:
    """Return the records of both processes."""
    return await asyncio.gather(
        *(asyncio.to_thread(common.child, "leases:runs", path, slot) for slot in range(_PROCESSES))
    )


def measure(given: Any) -> None:
    """Print one line."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        missing = max(0, _LOAD - int(os.getloadavg()[0]))  # a busy machine already has a part of the load
        burners = [stack.enter_context(common.running("leases:burn")) for _ in range(missing)]
        began = time.monotonic()
        found = [record for records in asyncio.run(both(str(Path(folder, "runs.db")))) for record in records]
        seconds, load = time.monotonic() - began, os.getloadavg()[0]
        for burner in burners:
            burner.process.kill()
    dead = [record for record in found if record[1] == "process_died"]
    others = [record for record in found if record[0] != "finished" and record not in dead]
    title = f"live runs declared dead, of {len(found)}, in {seconds:.0f} s, load average {load:.0f}, other faults {len(others)}"
    common.line(title, [len(dead)])

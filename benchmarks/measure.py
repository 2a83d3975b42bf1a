"""Measures one contender in this process: reads a job (a JSON object) from each line of standard input, and writes its result.

    python measure.py handwritten_openai <<< '{"figure": "turn", "url": "http://127.0.0.1:8000", "at_once": 32}'

Every job checks that the conversations took place: the server got every turn with the right agent's instructions, the
tools were called with the right arguments, the answer arrived. If a contender did less, its result is an error.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from batches import batch, batch_memory
from instruments import Meter, Result, control, converse, proof, resident, trim
from scenario import TALLY, TURNS, Session, history


async def _wave(session: Session, past: Any, at_once: int, times: int = 1) -> None:
    await asyncio.gather(*(converse(session, past, times) for _ in range(at_once)))


# --- the figures ------------------------------------------------------------------------------------------------------


async def rehearse(contender: Any, url: str) -> Result:
    """Hold one conversation, to check that it works, and whether the two tools of a turn run at the same time."""
    session: Session = await contender.open_session(f"{url}/v1")
    TALLY.rehearsal, TALLY.together = True, 0
    with proof(url, lambda: 1):
        await converse(session, session.prepare(history(2)))
    TALLY.rehearsal = False
    views, forgotten = list(session.views), control(url, "/stats")["forgotten"]
    await session.close()
    return {"together": TALLY.together, "forgotten": forgotten, "views": views}


async def turn(
    contender: Any, url: str, at_once: int = 1, past: int = 0, budget: float = 0.3, latency: float = 0
) -> Result:
    """Measure CPU and wall per turn, with `at_once` conversations after `past` messages, for at least `budget` seconds of CPU."""
    session: Session = await contender.open_session(f"{url}/latency={latency}/v1")
    prepared, done = session.prepare(history(past)), 0
    await _wave(session, prepared, at_once)
    with proof(url, lambda: done):
        meter = Meter()
        while meter.read()[0] < budget:
            await _wave(session, prepared, at_once)
            done += at_once
        result = meter.per(done * TURNS)
    await session.close()
    return result


async def _drain(session: Session, view: str, chunks: int) -> None:
    seen = 0
    async for _ in session.views[view]():
        seen += 1
    if seen != chunks:
        raise RuntimeError(f"{seen} deltas came, not {chunks}")


async def chunk(
    contender: Any, url: str, view: str, chunks: int = 1000, framing: str = "event", budget: float = 0.3
) -> Result:
    """Measure CPU and wall per chunk of streamed answers of `chunks` in one burst, the request included."""
    session: Session = await contender.open_session(f"{url}/script=answer/chunks={chunks}/framing={framing}/v1")
    await _drain(session, view, chunks)
    meter, done = Meter(), 0
    while meter.read()[0] < budget:
        await _drain(session, view, chunks)
        done += chunks
    result = meter.per(done)
    await session.close()
    return result


async def first_delta(contender: Any, url: str, view: str, times: int = 20) -> Result:
    """Measure wall time from the call to the first delta, the median of `times`; the events come 1 ms apart."""
    session: Session = await contender.open_session(f"{url}/script=answer/chunks=5/pause=0.001/v1")
    await _drain(session, view, 5)
    waits: list[float] = []
    for _ in range(times):
        begun, first = time.perf_counter(), 0.0
        async for _ in session.views[view]():
            first = first or time.perf_counter()
        waits.append(first - begun)
    await session.close()
    return {"wall_us": statistics.median(waits) * 1e6, "count": times}


async def parked(contender: Any, url: str, at_once: int = 2000, past: int = 0) -> Result:
    """Measure the resident bytes of a conversation that waits for its first answer, with `at_once` of them. For a fresh process."""
    session: Session = await contender.open_session(f"{url}/park=1/v1", at_once)
    prepared = session.prepare(history(past))
    with proof(url, lambda: 1):
        control(url, "/release")
        await _wave(session, prepared, 1)
    control(url, "/reset")
    gc.collect()
    before, tasks = resident(), list[asyncio.Task[None]]()
    while len(tasks) < at_once:  # slowly: connecting all at once would cause timeouts
        tasks += [asyncio.ensure_future(converse(session, prepared)) for _ in range(min(50, at_once - len(tasks)))]
        await _until_in_flight(url, tasks)
    gc.collect()
    result = {"bytes": (resident() - before) / at_once, "count": at_once}
    if control(url, "/stats")["turns"] != [at_once, 0, 0, 0]:
        raise RuntimeError("not all are waiting for the first answer")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await session.close()
    return result


async def _until_in_flight(url: str, tasks: list[asyncio.Task[None]]) -> None:
    """Wait until the server has the requests of all tasks. Raises the error of a task, or TimeoutError."""
    async with asyncio.timeout(60):
        while (await asyncio.to_thread(control, url, "/stats"))["in_flight"] < len(tasks):
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)


async def many(contender: Any, url: str, total: int = 10_000, at_once: int = 100, latency: float = 0) -> Result:
    """Hold `total` conversations, `at_once` at a time, twice: CPU per turn, and the memory that stays. For a fresh process.

    `bytes_left` and `objects_left` are measured after the client was closed; `bytes_grown` is the growth in the second time.
    """
    session: Session = await contender.open_session(f"{url}/latency={latency}/v1")
    prepared, after = session.prepare(()), list[int]()
    await _wave(session, prepared, 10)
    meter, objects, before = Meter(), len(gc.get_objects()), resident()
    with proof(url, lambda: 2 * total):
        for _ in range(2):
            await _wave(session, prepared, at_once, total // at_once)
            trim()
            after.append(resident())
    result = meter.per(2 * total * TURNS)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    await session.close()
    await asyncio.sleep(1)  # connections close in callbacks of the event loop
    trim()
    left = {"objects_left": len(gc.get_objects()) - objects, "bytes_left": resident() - before, "bytes_most": most}
    return {**result, **left, "bytes_grown": after[1] - after[0]}


async def about(contender: Any, url: str) -> Result:
    """Return the versions of the packages, and the import statement to measure."""
    found: Result = {"Python": sys.version.split()[0]}
    for package in contender.PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return {"versions": found, "import": contender.IMPORT}


FIGURES: dict[str, Callable[..., Awaitable[Result]]] = {
    figure.__name__: figure for figure in (rehearse, turn, chunk, first_delta, parked, many, batch, batch_memory, about)
}


# --- the process ------------------------------------------------------------------------------------------------------


async def _do(contender: Any, job: Result) -> Result:
    try:
        return await FIGURES[job.pop("figure")](contender, job.pop("url"), **job)
    except Exception as error:  # noqa: BLE001 - the error is the result of the job
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Answer jobs until standard input ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    contender = importlib.import_module(f"contenders.{sys.argv[1]}")
    results, sys.stdout = sys.stdout, sys.stderr  # the output of a framework is not a result
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(_do(contender, json.loads(line)))), file=results, flush=True)


if __name__ == "__main__":
    main()

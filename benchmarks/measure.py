"""Measures one contender in this process. It reads jobs from stdin, one JSON object on each line, and writes their results.

    python measure.py handwritten_openai <<< '{"figure": "turn", "url": "http://127.0.0.1:8000", "at_once": 32}'

Each job checks that the conversations took place: the server got each turn with the instructions of the right agent, the tools
were called with the right arguments, and the answer arrived. Otherwise the result of the contender is an error.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from batches import batch, batch_memory
from instruments import Meter, Result, converse, proof
from scenario import TALLY, TURNS, OpenSession, Session, history, opener_of


async def _wave(session: Session, past: Any, at_once: int, times: int = 1) -> None:
    await asyncio.gather(*(converse(session, past, times) for _ in range(at_once)))


# --- the figures ------------------------------------------------------------------------------------------------------


async def rehearse(open_session: OpenSession, url: str) -> Result:
    """Hold one conversation. This checks that it works, and whether the two tools of a turn run at the same time."""
    session: Session = await open_session(f"{url}/v1")
    TALLY.rehearsal, TALLY.together = True, 0
    with proof(url, lambda: 1):
        await converse(session, session.prepare(history(2)))
    TALLY.rehearsal = False
    await session.close()
    return {"together": TALLY.together}


async def turn(
    open_session: OpenSession, url: str, at_once: int = 1, past: int = 0, budget: float = 0.3, latency: float = 0
) -> Result:
    """Measure CPU and wall time per turn, for at least `budget` seconds of CPU.

    `at_once`: the number of concurrent conversations. `past`: the number of earlier messages.
    """
    session: Session = await open_session(f"{url}/latency={latency}/v1")
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


async def _drain(session: Session, chunks: int) -> None:
    seen = 0
    async for _ in session.stream():
        seen += 1
    if seen != chunks:
        raise RuntimeError(f"{seen} deltas came, not {chunks}")


async def chunk(
    open_session: OpenSession,
    url: str,
    chunks: int = 1000,
    pause: float = 0,
    framing: str = "event",
    budget: float = 0.3,
) -> Result:
    """Measure CPU and wall time per chunk of streamed answers, including the request.

    `chunks`: the number of chunks in an answer. `pause`: the seconds between two chunks; with 0, all come in one burst.
    """
    options = f"script=answer/chunks={chunks}/framing={framing}/pause={pause}"
    session = await open_session(f"{url}/{options}/v1")
    await _drain(session, chunks)
    meter, done = Meter(), 0
    while not done or meter.read()[0] < budget:
        await _drain(session, chunks)
        done += chunks
    result = meter.per(done)
    await session.close()
    return result


FIGURES: dict[str, Callable[..., Awaitable[Result]]] = {
    figure.__name__: figure for figure in (rehearse, turn, chunk, batch, batch_memory)
}


# --- the process ------------------------------------------------------------------------------------------------------


async def _do(open_session: OpenSession, job: Result) -> Result:
    try:
        return await FIGURES[job.pop("figure")](open_session, job.pop("url"), **job)
    except Exception as error:  # noqa: BLE001 - the error is the result of the job
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Do the jobs until stdin ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    open_session = opener_of(sys.argv[1])
    results, sys.stdout = sys.stdout, sys.stderr  # the output of a framework is not a result
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            print(json.dumps(runner.run(_do(open_session, json.loads(line)))), file=results, flush=True)


if __name__ == "__main__":
    main()

"""The figures of batches: many conversations, with a limited number at once.

If a contender has a batch runner, it uses this runner. The other contenders, and the loop by hand, start a task for each
conversation with `asyncio.gather`, and limit them with a semaphore.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from typing import Any

from instruments import Meter, Result, control, converse, proof, resident
from scenario import ANSWER, TURNS, OpenSession, Session


async def _hold(session: Any, total: int, at_once: int) -> None:
    if not hasattr(session, "hold"):
        await _gathered(session, total, at_once)
        return
    held = 0
    async with aclosing(session.hold(total, at_once)) as answers:
        async for answer in answers:
            held += answer == ANSWER
    if held != total:
        raise RuntimeError(f"{held} of {total} conversations had the answer")


async def _gathered(session: Session, total: int, at_once: int) -> None:
    past, room = session.prepare(()), asyncio.Semaphore(at_once)

    async def one() -> None:
        async with room:
            await converse(session, past)

    await asyncio.gather(*(one() for _ in range(total)))


async def batch(open_session: OpenSession, url: str, total: int, at_once: int, latency: float = 0.2) -> Result:
    """Measure a batch: CPU and wall time per turn, and conversations per second. Opening the connections is included."""
    session: Session = await open_session(f"{url}/latency={latency}/v1", at_once)
    await _hold(session, 1, 1)
    with proof(url, lambda: total):
        meter = Meter()
        await _hold(session, total, at_once)
        result = meter.per(total * TURNS)
    await session.close()
    return {**result, "conversations_per_second": 1e6 / (result["wall_us"] * TURNS)}


async def batch_memory(open_session: OpenSession, url: str, total: int, at_once: int, latency: float = 0.02) -> Result:
    """Measure the growth of the resident memory in a batch with one turn per item, in bytes. Call it in a fresh process."""
    session: Session = await open_session(f"{url}/script=answer/latency={latency}/v1", at_once)
    await _hold(session, 10, 10)
    control(url, "/reset")
    gc.collect()
    before = most = resident()
    work = asyncio.ensure_future(_hold(session, total, at_once))
    while not work.done():
        await asyncio.wait([work], timeout=0.02)
        most = max(most, resident())
    work.result()
    if control(url, "/stats")["turns"] != [0, 0, 0, total]:
        raise RuntimeError(f"the server saw {control(url, '/stats')}, and not {total} conversations")
    await session.close()
    return {"bytes": most - before, "count": total}

"""CPU of a live reader for each event, compared with a plain Starlette stream of the same text.

A run, or a task, makes a text of so many pieces, one every 2 ms. Readers in the same process follow it, as requests to an ASGI
application. The CPU without readers is subtracted.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import common

_PIECES, _READERS, _PAUSE = 400, 20, 0.002
_TEXT = " ".join(f"word{number:04}" for number in range(_PIECES))
Read = Callable[[], Awaitable[list[bytes]]]


async def cpu(begin: Callable[[], Awaitable[Read]], readers: int) -> tuple[float, int]:
    """Return the seconds of CPU with so many readers, and the bytes that one of them got."""
    before = time.process_time()
    read = await begin()
    found = await asyncio.gather(*(read() for _ in range(max(1, readers))))
    return time.process_time() - before, len(b"".join(found[0]))


async def per_event(begin: Callable[[], Awaitable[Read]]) -> float:
    """Return the microseconds of CPU of a reader for each piece: many readers, minus one."""
    await cpu(begin, 1)
    few, size = await cpu(begin, 1)
    many, _ = await cpu(begin, 1 + _READERS)
    if size < len(_TEXT):
        raise RuntimeError(f"a reader got {size} bytes")
    return 1e6 * (many - few) / _READERS / _PIECES


async def aswarm() -> float:
    """Measure readers of the events of a run."""
    model = common.Model("weather", answer=_TEXT, pause=_PAUSE)
    with tempfile.TemporaryDirectory() as folder:
        async with common.serving(Path(folder, "readers.db"), model) as app:
            numbers = iter(range(1000))

            async def begin() -> Read:
                run = await app.start("Oslo?", conversation=f"c{next(numbers)}", user="user")
                return lambda: common.request(app, "GET", f"/runs/{run.id}/events")

            return await per_event(begin)


async def starlette() -> float:
    """Measure readers of a list that a task fills."""
    from starlette.applications import Starlette  # noqa: PLC0415 - only here
    from starlette.responses import StreamingResponse  # noqa: PLC0415 - as above
    from starlette.routing import Route  # noqa: PLC0415 - as above

    pieces, more = list[str](), asyncio.Event()
    tasks = set[asyncio.Task[None]]()

    async def make() -> None:
        nonlocal more
        for word in common.words(_TEXT):
            await asyncio.sleep(_PAUSE)
            pieces.append(word)
            more.set()
            more = asyncio.Event()

    async def frames() -> AsyncIterator[bytes]:
        at = 0
        while at < _PIECES:
            while at < len(pieces):
                yield f"id: {at}\ndata: {json.dumps({'type': 'TextDelta', 'text': pieces[at]})}\n\n".encode()
                at += 1
            if at < _PIECES:
                await more.wait()

    async def answer(_: Any) -> StreamingResponse:
        return StreamingResponse(frames(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/", answer)])

    async def begin() -> Read:
        pieces.clear()
        tasks.clear()
        tasks.add(asyncio.create_task(make()))
        return lambda: common.request(app, "GET", "/")

    return await per_event(begin)


def measure(given: Any) -> None:
    """Print three lines."""
    found: dict[str, list[float]] = {"aswarm": [], "starlette": []}
    for turn in range(given.rounds):
        for name in list(found)[:: 1 if turn % 2 == 0 else -1]:
            found[name].append(common.child(f"readers:{name}"))
    for name, values in found.items():
        common.line(f"CPU of a live reader, us an event, {name}", values, 1)
    ratios = [ours / plain for ours, plain in zip(found["aswarm"], found["starlette"], strict=True)]
    common.line("- ratio", ratios, 1)

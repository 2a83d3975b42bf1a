"""Milliseconds from the call of a durable `start` until the first model request of the run."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import threading
from typing import Any

import common

_RUNS = 100


async def starts(url: str, total: int, poll: float, *, works: bool) -> dict[str, Any]:
    """Start runs one by one at random moments. Returns the times of the starts, and of the model requests in this process."""
    started: dict[str, float] = {}
    asked: dict[str, float] = {}
    model = common.Model("weather", on_start=lambda text: asked.setdefault(text, common.clock()))
    async with common.durable(url, model, poll_seconds=poll, **({} if works else {"concurrency": 0})) as runs:
        for at in range(total):
            text = f"run {at}"
            started[text] = common.clock()
            await (await runs.start("weather", text)).result()
            await asyncio.sleep(random.random() * 0.2)  # noqa: S311 - a random point between two polls
    return {"started": started, "asked": asked}


def elsewhere(url: str, poll: float) -> list[float]:
    """Return the milliseconds of each run in another process."""
    asked: dict[str, float] = {}
    with common.running("common:worker", url, poll) as process:

        def read() -> None:
            asked.update(json.loads(line) for line in iter(process.output.readline, "") if line.startswith("["))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        started = common.child("latency:client", url, poll)["started"]
        process.input.close()
        reader.join()
    return [1e3 * (asked[text] - at) for text, at in started.items()]


def client(url: str, poll: float) -> Any:
    """Start runs from a process that executes none."""
    return starts(url, _RUNS, poll, works=False)


def own(url: str, poll: float) -> Any:
    """Start runs in the process that executes them."""
    return starts(url, _RUNS, poll, works=True)


def measure(_: Any) -> None:
    """Print the median and the 95th percentile."""
    with common.databases() as made:
        for store in common.STORES:
            found = common.child("latency:own", made.empty(store), 0.1)
            here = [1e3 * (found["asked"][text] - at) for text, at in found["started"].items()]
            for place, values in (("same process", here), ("another process", elsewhere(made.empty(store), 0.1))):
                title = f"durable start to the first completion, ms, {store}, {place}, poll 0.1 s"
                common.line(title, values, 1)
                common.line(f"- its 95th percentile (n={len(values)})", [statistics.quantiles(values, n=20)[18]], 1)

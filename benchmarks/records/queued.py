"""Milliseconds of a durable `start`, and of the claim of a run, with many queued runs and with none.

A client that executes nothing starts the runs. A claim is the time between the first completions of two runs in a worker that
executes one run at a time: the claim, and the run itself.
"""

from __future__ import annotations

import asyncio
import os
import time
from itertools import pairwise
from typing import Any

import common

_STARTS, _CLAIMS = 100, 60


async def fill(url: str, total: int) -> None:
    """Queue so many runs, one by one: concurrent starts wait for the lock of a SQLite file."""
    async with common.durable(url, common.Model("weather"), concurrency=0) as runs:
        for _ in range(total):
            await runs.start("weather", "Oslo?")


async def starts(url: str) -> list[float]:
    """Return the milliseconds of each start."""
    found = list[float]()
    async with common.durable(url, common.Model("weather"), concurrency=0) as runs:
        for _ in range(_STARTS):
            began = time.perf_counter()
            await runs.start("weather", "Oslo?")
            found.append(1e3 * (time.perf_counter() - began))
    return found[10:]


async def claims(url: str) -> None:
    """Print the milliseconds between the runs of a worker, and exit without requeueing the other runs."""
    times, enough = list[float](), asyncio.Event()

    def note(_: str) -> None:
        times.append(time.perf_counter())
        if len(times) > _CLAIMS:
            enough.set()

    async with common.durable(url, common.Model("weather", on_start=note), concurrency=1):
        await enough.wait()
        gaps = [1e3 * (after - before) for before, after in pairwise(times)]
        print(gaps[5:_CLAIMS], flush=True)
        os._exit(0)


def measure(given: Any) -> None:
    """Print the lines for both stores and queues."""
    with common.databases() as made:
        for store in common.STORES:
            urls = {0: made.empty(store), given.queued: made.empty(store)}
            for total, url in urls.items():
                began = time.perf_counter()
                common.child("queued:fill", url, total)
                if total:
                    common.line(f"seconds to queue {total} runs, {store}", [time.perf_counter() - began], 1)
            for what in ("starts", "claims"):
                for total, url in urls.items():
                    values = common.child(f"queued:{what}", url)
                    common.line(f"ms of {what} beside {total} queued runs, {store}", values, 1)

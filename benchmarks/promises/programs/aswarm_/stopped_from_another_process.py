"""A worker executes the run, another process stops it. Follows docs/guides/durable.md ("Workers")."""

from __future__ import annotations

import asyncio

from common import agent, new_swarm
from stage import FOLDER, GO_ON, book_train, effect, look_up, main, seen

from aswarm.durable import DurableRuns

DESK = agent(look_up, book_train)


def runs(concurrency: int) -> DurableRuns:
    """Return the runs of this process. With `concurrency=0`, it executes none."""
    store = f"sqlite:///{FOLDER}/runs.db"
    return DurableRuns(new_swarm(), agents=[DESK], store=store, version="1", concurrency=concurrency)


async def serve() -> None:
    """Execute runs, as a worker."""
    async with runs(8):
        effect("ready")
        await asyncio.sleep(600)


async def start() -> None:
    """Start a run in the worker, and leave while its tool runs."""
    async with runs(0) as web:
        text = "Look up order 7, and book the train."
        await web.start(DESK, text, run_id="first", user="ann", conversation="7")
        await seen("book_train")


async def stop() -> None:
    """Stop the run from this process."""
    async with runs(0) as web:
        record = await (await web.get_run("first", user="ann")).cancel()
        print(record)


async def go_on() -> None:
    """Continue the conversation in the worker."""
    async with runs(0) as web:
        run = await web.start(DESK, GO_ON, user="ann", conversation="7")
        print((await run.result()).text)


if __name__ == "__main__":
    main(serve, start, stop, go_on)

"""AgentOS executes the run, another process stops it.

Follows https://docs.agno.com/background-execution/overview, and stopping.py. The route `/cancel` of AgentOS alone waits for the current
step (https://docs.agno.com/run-cancellation/overview), and a cancelled run is not part of the history of the next run.
"""

from __future__ import annotations

import asyncio
import json

from common import PLACE, RUNS, get_run, post
from stage import GO_ON, book_train, look_up, main, seen


async def serve() -> None:
    """Serve."""
    import service  # noqa: PLC0415 - only this process needs agno
    import stopping  # noqa: PLC0415

    await service.serve(look_up, book_train, hooks=[stopping.stoppable], base_app=stopping.app)


async def start() -> None:
    """Start a background run, and leave while its tool runs."""
    run = await post(RUNS, message="Look up order 7, and book the train.", background="true")
    PLACE.write_text(json.dumps(run["run_id"]))
    await seen("book_train")


async def stop() -> None:
    """Stop the run from this process, and wait until it has stopped, at most 10 seconds."""
    run_id = json.loads(PLACE.read_text())
    print(await post(f"/stop/{run_id}"))
    for _ in range(40):
        run = await get_run(run_id)
        if run["status"] in ("COMPLETED", "CANCELLED"):
            break
        await asyncio.sleep(0.25)
    print(run["status"])


async def go_on() -> None:
    """Continue the conversation."""
    await post(RUNS, message=GO_ON)


if __name__ == "__main__":
    main(serve, start, stop, go_on)

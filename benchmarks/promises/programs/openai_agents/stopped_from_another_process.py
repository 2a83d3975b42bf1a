"""A worker executes the run, another process stops it.

Follows https://docs.dbos.dev/integrations/openai-agents and
https://docs.dbos.dev/python/tutorials/workflow-management#cancelling-workflows (`preemptible`, and the list of workflows). `result.cancel()` of the SDK needs the
object of the run, in its process.
"""

from __future__ import annotations

import asyncio

from agents import Runner
from common import agent, session
from dbos import DBOS
from dbos_openai_agents import DBOSRunner
from durable import client, launch, once, repeatable
from stage import GO_ON, book_train, effect, look_up, main, seen

DESK = agent(repeatable(look_up), once(book_train))


@DBOS.workflow(name="turn")
async def turn(text: str) -> str:
    """Answer the user."""
    return str((await DBOSRunner.run(DESK, text, session=session())).final_output)


async def serve() -> None:
    """Execute the runs of the queue, as a worker."""
    launch()
    await DBOS.register_queue_async("turns", polling_interval_sec=0.1)
    effect("ready")
    await asyncio.sleep(600)


async def start() -> None:
    """Start a run in the worker, and leave while its tool runs."""
    options = {"workflow_name": "turn", "queue_name": "turns", "workflow_id": "first"}
    await client().enqueue_async(options, "Look up order 7, and book the train.")
    await seen("book_train")


async def stop() -> None:
    """Stop the run from this process."""
    await client().cancel_workflow_async("first", cancel_children=True)
    await seen("book_train cancelled")


async def go_on() -> None:
    """Continue the conversation. DBOS has the record of the stopped call, which is not in the session."""
    for call in await client().list_workflows_async(parent_workflow_id="first", status="CANCELLED"):
        text = f"The call {call.workflow_id} was started and then cancelled. Its outcome is unknown."
        await session().add_items([{"role": "system", "content": text}])
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(serve, start, stop, go_on)

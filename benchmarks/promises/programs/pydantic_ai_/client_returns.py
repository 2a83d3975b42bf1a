"""The client disconnects in the middle of the text, and returns.

Follows https://ai.pydantic.dev/durable_execution/dbos/ (a handler in `DBOSDurability` gets the events as they arrive) and
https://docs.dbos.dev/ai/streaming (a durable stream, which each process can read). A client of the UI adapters that disconnects
ends the run: https://ai.pydantic.dev/ui/vercel-ai/#cancellation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any

from dbos import DBOS, DBOSClient
from pydantic_ai import Agent, PartDeltaEvent, PartStartEvent, RunContext, TextPart, TextPartDelta
from pydantic_ai.durable_exec.dbos import DBOSDurability
from stage import FOLDER, effect, look_up, main, read, read_whole

DATABASE = f"sqlite:///{FOLDER}/dbos.sqlite"
RUN = "run-of-order-7"


async def publish(_: RunContext[None], events: AsyncIterable[Any]) -> None:
    """Write each piece of the text to the stream of the workflow."""
    async for event in events:
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart) and event.part.content:
            await DBOS.write_stream_async("text", event.part.content)
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            await DBOS.write_stream_async("text", event.delta.content_delta)


DESK = Agent("openai:gpt-5", name="desk", tools=[look_up], capabilities=[DBOSDurability(event_stream_handler=publish)])


@DBOS.workflow(name="answer")
async def answer(text: str) -> str:
    """Run the agent."""
    return (await DESK.run(text)).output


async def serve() -> None:
    """Execute the runs of the queue."""
    DBOS(config={"name": "desk", "system_database_url": DATABASE})
    DBOS.launch()
    await DBOS.register_queue_async("runs")
    effect("ready")
    await asyncio.Event().wait()


async def leave() -> None:
    """Start a run, read three pieces of the text, and disconnect."""
    client = DBOSClient(system_database_url=DATABASE)
    await client.enqueue_async(
        {"queue_name": "runs", "workflow_name": "answer", "workflow_id": RUN}, "Where is order 7?"
    )
    pieces = 0
    async for piece in client.read_stream_async(RUN, "text"):
        read(piece)
        pieces += 1
        if pieces == 3:
            return


async def come_back() -> None:
    """Read the stream from its start."""
    client = DBOSClient(system_database_url=DATABASE)
    read_whole("".join([piece async for piece in client.read_stream_async(RUN, "text")]))


if __name__ == "__main__":
    main(serve, leave, come_back)

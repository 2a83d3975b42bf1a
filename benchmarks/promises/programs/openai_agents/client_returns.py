"""The client disconnects in the middle of the text, and returns.

Follows https://docs.dbos.dev/ai/streaming (durable streams), https://docs.dbos.dev/python/reference/client and
https://openai.github.io/openai-agents-python/streaming/. `DBOSRunner` does not stream, so the whole run is one step, which DBOS
repeats after a crash of the worker.
"""

from __future__ import annotations

import asyncio

from agents import Runner
from common import agent, tool
from dbos import DBOS
from durable import client, launch
from openai.types.responses import ResponseTextDeltaEvent
from stage import FOLDER, effect, look_up, main, read

DESK = agent(tool(look_up))
PLACE = FOLDER / "place"  # what the page of a browser remembers


@DBOS.step()
async def answer(text: str) -> str:
    """Run the agent, and write the pieces of its text to the stream."""
    result = Runner.run_streamed(DESK, text)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            await DBOS.write_stream_async("text", event.data.delta)
    return str(result.final_output)


@DBOS.workflow(name="turn")
async def turn(text: str) -> str:
    """Answer the user."""
    return await answer(text)


async def serve() -> None:
    """Execute the runs of the queue, as a worker."""
    launch()
    await DBOS.register_queue_async("turns", polling_interval_sec=0.1)
    effect("ready")
    await asyncio.sleep(600)


async def leave() -> None:
    """Start a run, read three pieces of the text, and disconnect."""
    await client().enqueue_async(
        {"workflow_name": "turn", "queue_name": "turns", "workflow_id": "first"}, "Where is order 7?"
    )
    pieces = 0
    async for piece in client().read_stream_async("first", "text", polling_interval_sec=0.05):
        read(piece)
        pieces += 1
        PLACE.write_text(str(pieces))
        if pieces == 3:
            return


async def come_back() -> None:
    """Read the rest."""
    offset = int(PLACE.read_text())
    async for piece in client().read_stream_async("first", "text", offset=offset, polling_interval_sec=0.05):
        read(piece)


if __name__ == "__main__":
    main(serve, leave, come_back)

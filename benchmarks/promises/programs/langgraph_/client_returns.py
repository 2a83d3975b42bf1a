"""The client disconnects in the middle of the text, and returns.

Follows https://docs.langchain.com/langsmith/streaming and
https://docs.langchain.com/langsmith/agent-server-api/thread-runs/join-run-stream (`stream_resumable`, the last event ID). The
server is the one for development, `langgraph dev`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import service
from common import agent, said
from stage import FOLDER, look_up, main, read

DESK = agent(look_up)
PLACE = FOLDER / "place.json"  # what the page of a browser remembers


async def serve() -> None:
    """Serve."""
    await service.serve(__file__)


async def texts(events: AsyncIterator[Any]) -> AsyncIterator[tuple[str, str]]:
    """Yield the pieces of the model's text, each with the ID of its event."""
    async for event in events:
        if event.event == "messages" and event.data[1]["langgraph_node"] == "model" and event.data[0]["content"]:
            yield event.id, event.data[0]["content"]


async def leave() -> None:
    """Start a run, read three pieces of the text, and disconnect."""
    client, pieces = service.browser(), 0
    thread = (await client.threads.create())["thread_id"]
    options = {"stream_mode": "messages-tuple", "stream_resumable": True}
    run = (await client.runs.create(thread, "desk", input=said("Where is order 7?"), **options))["run_id"]
    async for event_id, text in texts(client.runs.join_stream(thread, run, last_event_id="0")):
        read(text)
        pieces += 1
        if pieces == 3:
            PLACE.write_text(json.dumps([thread, run, event_id]))
            return


async def come_back() -> None:
    """Read the rest."""
    thread, run, event_id = json.loads(PLACE.read_text())
    async for _, text in texts(service.browser().runs.join_stream(thread, run, last_event_id=event_id)):
        read(text)


if __name__ == "__main__":
    main(serve, leave, come_back)

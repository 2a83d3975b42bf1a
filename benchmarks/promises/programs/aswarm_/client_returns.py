"""The client disconnects in the middle of the text, and returns. Follows docs/guides/serving.md ("Runs and readers")."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import service
from common import agent
from stage import FOLDER, look_up, main, read

PLACE = FOLDER / "place.json"  # what the page of a browser remembers


async def serve() -> None:
    """Serve."""
    await service.serve(agent(look_up))


async def events(location: str, last: str) -> AsyncIterator[tuple[str, dict[str, object]]]:
    """Yield the events after the last event, each with its number, as an `EventSource` does."""
    number = last
    async with (
        service.browser() as client,
        client.stream("GET", location, headers={"last-event-id": last} if last else {}) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("id:"):
                number = line.removeprefix("id:").strip()
            if line.startswith("data:"):
                yield number, json.loads(line.removeprefix("data:"))


async def leave() -> None:
    """Start a run, read three pieces of the text, and disconnect."""
    async with service.browser() as client:
        started = await client.post(service.RUNS, json={"text": "Where is order 7?"})
    location, pieces = started.headers["location"], 0
    async for number, event in events(location, ""):
        if event["type"] == "TextDelta":
            read(str(event["text"]))
            pieces += 1
        if pieces == 3:
            PLACE.write_text(json.dumps([location, number]))
            return


async def come_back() -> None:
    """Read the rest."""
    location, number = json.loads(PLACE.read_text())
    async for _, event in events(location, number):
        if event["type"] == "TextDelta":
            read(str(event["text"]))


if __name__ == "__main__":
    main(serve, leave, come_back)

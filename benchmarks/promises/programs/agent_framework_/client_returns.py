"""The client disconnects in the middle of the text, and returns to the background response. See service.py."""

from __future__ import annotations

import json

import service
from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from agent_framework_foundry_hosting import ResponsesHostServer
from stage import FOLDER, look_up, main, read

PLACE = FOLDER / "place.json"  # what the page of a browser remembers


async def serve() -> None:
    """Serve."""
    desk = Agent(OpenAIChatClient(model="gpt-5"), name="desk", tools=[look_up], default_options={"store": False})
    await service.serve(ResponsesHostServer(desk))


async def leave() -> None:
    """Start a background response, read three pieces of the text, and disconnect."""
    pieces = 0
    body = {"input": "Where is order 7?", "background": True, "stream": True}
    async with service.browser() as client, client.stream("POST", "/responses", json=body) as answer:
        async for event in service.events(answer):
            if event["type"] == "response.created":
                response = event["response"]["id"]
            if event["type"] == "response.output_text.delta":
                read(event["delta"])
                pieces += 1
            if pieces == 3:
                PLACE.write_text(json.dumps([response, event["sequence_number"]]))
                return


async def come_back() -> None:
    """Read the rest."""
    response, number = json.loads(PLACE.read_text())
    query = {"stream": "true", "starting_after": number}
    async with service.browser() as client, client.stream("GET", f"/responses/{response}", params=query) as answer:
        async for event in service.events(answer):
            if event["type"] == "response.output_text.delta":
                read(event["delta"])


if __name__ == "__main__":
    main(serve, leave, come_back)

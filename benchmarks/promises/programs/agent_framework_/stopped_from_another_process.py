"""A background response is cancelled from another process. See service.py."""

from __future__ import annotations

import service
from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from agent_framework_foundry_hosting import ResponsesHostServer
from stage import FOLDER, GO_ON, book_train, look_up, main, seen

PLACE = FOLDER / "place.txt"  # what the page of a browser remembers


async def serve() -> None:
    """Serve."""
    tools = [look_up, book_train]
    desk = Agent(OpenAIChatClient(model="gpt-5"), name="desk", tools=tools, default_options={"store": False})
    await service.serve(ResponsesHostServer(desk))


async def start() -> None:
    """Start a background response, and leave while its tool runs."""
    body = {"input": "Look up order 7, and book the train.", "background": True}
    async with service.browser() as client:
        started = await client.post("/responses", json=body)
    PLACE.write_text(started.json()["id"])
    await seen("book_train")


async def stop() -> None:
    """Cancel the response from this process."""
    async with service.browser() as client:
        stopped = await client.post(f"/responses/{PLACE.read_text()}/cancel")
    print(stopped.status_code, stopped.text)


async def go_on() -> None:
    """Continue the conversation."""
    body = {"input": GO_ON, "previous_response_id": PLACE.read_text()}
    async with service.browser() as client:
        answer = await client.post("/responses", json=body)
    print(answer.status_code, answer.text)


if __name__ == "__main__":
    main(serve, start, stop, go_on)

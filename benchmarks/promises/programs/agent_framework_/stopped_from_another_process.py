"""A background response is cancelled from another process. See service.py.

The agent stores its history after each call of the model, in the session that the host stores under the id of the response. No page says
how to go on after a cancellation: the client continues from this id, and answers the call that has no result, as clients of the Responses
API do. A named `conversation` takes no other message ("If the turn fails or is cancelled, start a new conversation"). With the history of
the host (`history_source="agent_server"`), the finished result is lost.
"""

from __future__ import annotations

import json

import service
from agent_framework import Agent, InMemoryHistoryProvider
from agent_framework.openai import OpenAIChatClient
from agent_framework_foundry_hosting import ResponsesHostServer
from stage import FOLDER, GO_ON, book_train, look_up, main, seen

PLACE = FOLDER / "place.json"  # what the page of a browser remembers: the response, and the calls that have no result


async def serve() -> None:
    """Serve."""
    desk = Agent(
        OpenAIChatClient(model="gpt-5"),
        name="desk",
        tools=[look_up, book_train],
        context_providers=[InMemoryHistoryProvider()],
        default_options={"store": False},
        require_per_service_call_history_persistence=True,
    )
    await service.serve(ResponsesHostServer(desk, history_source="agent"))


async def start() -> None:
    """Start a background response, and leave while its tool runs. The page has shown the calls."""
    calls = []
    body = {"input": "Look up order 7, and book the train.", "background": True, "stream": True}
    async with service.browser() as client, client.stream("POST", "/responses", json=body) as answer:
        async for event in service.events(answer):
            if event["type"] == "response.created":
                response = event["response"]["id"]
            if event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call":
                calls.append(event["item"]["call_id"])
            if event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call_output":
                calls.remove(event["item"]["call_id"])
            if calls == ["call_train"]:
                break
    PLACE.write_text(json.dumps([response, calls]))
    await seen("book_train")


async def stop() -> None:
    """Cancel the response from this process."""
    response, _ = json.loads(PLACE.read_text())
    async with service.browser() as client:
        print((await client.post(f"/responses/{response}/cancel")).text)


async def go_on() -> None:
    """Continue the conversation."""
    response, calls = json.loads(PLACE.read_text())
    text = "interrupted; the outcome is unknown"
    results = [{"type": "function_call_output", "call_id": call_id, "output": text} for call_id in calls]
    body = {"input": [*results, {"role": "user", "content": GO_ON}], "previous_response_id": response}
    async with service.browser() as client:
        print((await client.post("/responses", json=body)).text)


if __name__ == "__main__":
    main(serve, start, stop, go_on)

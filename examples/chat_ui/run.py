"""Prints what both clients get: a conversation with the protocol of `useChat`, and one with AG-UI. `--serve`: only serve.

Model and server come from the environment: OPENAI_API_KEY, OPENAI_BASE_URL, OPENAI_DEFAULT_MODEL.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from typing import Any

import httpx
import uvicorn
from app import app, service

TEXT = "Please cut down the rose."


async def show() -> None:
    """Ask with both protocols, and approve the call in each."""
    transport = httpx.ASGITransport(app=app)
    async with service.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
        print("useChat: POST /agents/chat/Gardener")
        message: dict[str, Any] = {"id": "1", "role": "user", "parts": [{"type": "text", "text": TEXT}]}
        parts = await post(client, "/agents/chat/Gardener", {"id": "v", "messages": [message]})
        [request] = [part for part in parts if part["type"] == "tool-approval-request"]
        approval = {
            "type": "dynamic-tool",
            "toolName": "cut_down",
            "toolCallId": request["toolCallId"],
            "state": "approval-responded",
            "approval": {"id": request["approvalId"], "approved": True},
        }
        answered = {"id": parts[0]["messageId"], "role": "assistant", "parts": [approval]}
        await post(client, "/agents/chat/Gardener", {"id": "v", "messages": [message, answered]})

        print("AG-UI: POST /agents/agui/Gardener")
        body: dict[str, Any] = {"threadId": "a", "protocolVersion": "1.0", "tools": [], "context": [], "state": {}}
        said = [{"id": "1", "role": "user", "content": TEXT}]
        events = await post(client, "/agents/agui/Gardener", {**body, "runId": "1", "messages": said})
        [interrupt] = events[-1]["outcome"]["interrupts"]
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        await post(client, "/agents/agui/Gardener", {**body, "runId": "2", "messages": said, "resume": resume})


async def post(client: httpx.AsyncClient, place: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Send a request, and print the types of the events. A repeated type is printed once."""
    answer = await client.post(place, json=body)
    answer.raise_for_status()
    lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: {")]
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    print("   ", " ".join(kind for kind, _ in itertools.groupby(each["type"] for each in found)))
    return found


def main() -> None:
    """Show the protocols, or serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="serve until Ctrl-C")
    parser.add_argument("--port", type=int, default=8000, help="the port on this machine")
    options = parser.parse_args()
    if options.serve:
        uvicorn.run(app, port=options.port)
    else:
        asyncio.run(show())


if __name__ == "__main__":
    main()

"""The service is killed and restarted while a call waits. See service.py: the host stores the session of the agent."""

from __future__ import annotations

from typing import Any

import service
from agent_framework import Agent, InMemoryHistoryProvider, tool
from agent_framework.openai import OpenAIChatClient
from agent_framework_foundry_hosting import ResponsesHostServer
from stage import FOLDER, GO_ON, main, refund

PLACE = FOLDER / "request.txt"  # what the page of a browser remembers


async def serve() -> None:
    """Serve."""
    desk = Agent(
        OpenAIChatClient(model="gpt-5"),
        name="desk",
        tools=[tool(refund, approval_mode="always_require")],
        context_providers=[InMemoryHistoryProvider()],
        default_options={"store": False},
    )
    await service.serve(ResponsesHostServer(desk, history_source="agent"))


async def send(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Send a message of the user, or an answer, and return the output."""
    async with service.browser() as client:
        answer = await client.post("/responses", json={"input": given, "conversation": "conv_ann"})
    print(answer.text)
    return answer.json()["output"]


async def ask() -> None:
    """Run until the call waits."""
    [request] = [item for item in await send("Refund order 7.") if item["type"] == "mcp_approval_request"]
    PLACE.write_text(request["id"])


async def approve() -> None:
    """Approve the call at the new process."""
    await send([{"type": "mcp_approval_response", "approval_request_id": PLACE.read_text(), "approve": True}])


async def go_on() -> None:
    """Continue the conversation."""
    await send(GO_ON)


if __name__ == "__main__":
    main(serve, ask, approve, go_on)

"""A service for the programs of sentence 3: `A2AServer` behind uvicorn, and its client.

Follows https://strandsagents.com/docs/user-guide/sdk/multi-agent/agent-to-agent/ and
https://strandsagents.com/docs/user-guide/sdk/multi-agent/a2a-server-configuration/: an agent for each context, with a session.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import DataPart, Message, Part, Role, Task, TextPart
from stage import FOLDER, PORT, effect
from strands import Agent
from strands.multiagent.a2a import A2AServer

TASK = FOLDER / "task.json"  # what the page of a browser remembers


async def serve(agent_of: Callable[[str], Agent]) -> None:
    """Serve until the process is killed."""
    server = A2AServer(agent_factory=agent_of, port=PORT, enable_a2a_compliant_streaming=True)
    web = uvicorn.Server(uvicorn.Config(server.to_starlette_app(), port=PORT, log_level="warning"))
    serving = asyncio.create_task(web.serve())
    while not web.started and not serving.done():
        await asyncio.sleep(0.02)
    effect("ready")
    await serving


@asynccontextmanager
async def browser() -> AsyncIterator[Client]:
    """Return a client of the service."""
    url = f"http://127.0.0.1:{PORT}"
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(httpx_client=http, base_url=url).get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http, streaming=True)).create(card)


def message(*parts: TextPart | DataPart) -> Message:
    """Return a message of the conversation."""
    wrapped = [Part(root=part) for part in parts]
    return Message(role=Role.user, parts=wrapped, message_id=uuid.uuid4().hex, context_id="conversation-7")


def says(text: str) -> Message:
    """Return a message with a text."""
    return message(TextPart(text=text))


def remember(task: Task) -> None:
    """Save the id of the task, and the ids of its interrupts."""
    parts = task.status.message.parts if task.status.message else []
    waiting = [each for part in parts if isinstance(part.root, DataPart) for each in part.root.data["interrupts"]]
    TASK.write_text(json.dumps({"id": task.id, "waiting": [each["interruptId"] for each in waiting]}))


def approval() -> Message:
    """Return a message that approves the calls that wait."""
    answers = [{"interruptId": each, "response": "y"} for each in remembered()["waiting"]]
    return message(*(DataPart(data={"interruptResponse": each}) for each in answers))


def remembered() -> Any:
    """Return what was saved."""
    return json.loads(TASK.read_text())

"""A service with AG-UI: detached runs, and a snapshot after each batch of tools.

Follows the page of agent-framework-ag-ui ("AG-UI Thread Snapshots", "Disconnect-safe runs", "Interrupts and Resume"):
https://github.com/microsoft/agent-framework/tree/main/python/packages/ag-ui
"""

from __future__ import annotations

import asyncio
from typing import Any

import service
import uvicorn
from agent_framework import Agent
from agent_framework.ag_ui import InMemoryAGUIThreadSnapshotStore, add_agent_framework_fastapi_endpoint
from fastapi import FastAPI
from stage import PORT, effect, refused


async def serve(desk: Agent[Any]) -> None:
    """Serve until the process is killed."""
    app = FastAPI()
    snapshots = InMemoryAGUIThreadSnapshotStore()
    add_agent_framework_fastapi_endpoint(app, desk, "/", snapshot_store=snapshots, single_user=True, detached_runs=True)
    serving = asyncio.create_task(uvicorn.Server(uvicorn.Config(app, port=PORT, log_level="error")).serve())
    await service.answering("/docs")
    effect("ready")
    await serving


async def send(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Send a request of the browser, and return the events of the run."""
    request = {"threadId": "ann", "messages": [], **body}
    async with service.browser() as client, client.stream("POST", "/", json=request) as answer:
        if answer.status_code == 409:
            refused(RuntimeError((await answer.aread()).decode()))
        return [event async for event in service.events(answer)]


async def say(text: str) -> list[dict[str, Any]]:
    """Send a message of the user."""
    return await send({"messages": [{"id": text, "role": "user", "content": text}]})


async def approve(interrupt_id: str) -> None:
    """Approve a call."""
    print(await send({"resume": [{"interruptId": interrupt_id, "status": "resolved", "payload": {"approved": True}}]}))

"""A service for the programs: `ResponsesHostServer`, on this machine.

Follows the page of agent-framework-foundry-hosting ("Responses agent history and storage", "State store"), and for the routes the page
of azure-ai-agentserver-responses ("Protocol endpoints", "Streaming and background modes"):
https://github.com/microsoft/agent-framework/tree/main/python/packages/foundry_hosting
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
from stage import FOLDER, PORT, effect

os.environ["AGENTSERVER_STATE_ROOT"] = str(FOLDER / "state")

from agent_framework_foundry_hosting import ResponsesHostServer


async def serve(host: ResponsesHostServer) -> None:
    """Serve until the process is killed."""
    serving = asyncio.create_task(host.run_async("127.0.0.1", PORT))
    await answering("/readiness")
    effect("ready")
    await serving


async def answering(path: str) -> None:
    """Wait until the service answers."""
    async with browser() as client:
        while True:
            try:
                await client.get(path)
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
            else:
                return


def browser() -> httpx.AsyncClient:
    """Return a client of the service."""
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT}", timeout=60)


async def events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream."""
    async for line in answer.aiter_lines():
        if line.startswith("data:"):
            yield json.loads(line.removeprefix("data:"))

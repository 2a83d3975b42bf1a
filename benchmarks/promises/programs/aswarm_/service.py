"""A service for the programs of sentence 3: `create_app` behind uvicorn. Follows docs/guides/serving.md."""

from __future__ import annotations

import asyncio

import httpx
import uvicorn
from common import STORE, new_swarm
from stage import PORT, effect

from aswarm import Agent
from aswarm.serve import bearer, create_app

RUNS = "/conversations/7/runs"


async def serve(agent: Agent) -> None:
    """Serve until the process is killed."""
    app = create_app(new_swarm(), agents=agent, auth=bearer({"token": "ann"}), store=STORE)
    server = uvicorn.Server(uvicorn.Config(app, port=PORT, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.02)
    effect("ready")
    await serving


def browser() -> httpx.AsyncClient:
    """Return a client of the service."""
    headers = {"authorization": "Bearer token"}
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT}", headers=headers, timeout=60)

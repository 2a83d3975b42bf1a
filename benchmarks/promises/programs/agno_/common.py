"""A browser of AgentOS: the forms, streams and runs of its HTTP API."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from stage import FOLDER, PORT

RUNS = "/agents/desk/runs"
SESSION = "7"
PLACE = FOLDER / "place.json"  # what the page of a browser remembers


def browser() -> httpx.AsyncClient:
    """Return a client of the service."""
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT}", timeout=60)


async def post(path: str, **form: str) -> dict[str, Any]:
    """Send a form, and return the answer."""
    async with browser() as client:
        answer = await client.post(path, data={"session_id": SESSION, "stream": "false", **form})
    answer.raise_for_status()
    return dict(answer.json())


async def get_run(run_id: str) -> dict[str, Any]:
    """Return a run of the database."""
    async with browser() as client:
        answer = await client.get(f"{RUNS}/{run_id}", params={"session_id": SESSION})
    answer.raise_for_status()
    return dict(answer.json())


async def events(path: str, **form: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream."""
    async with (
        browser() as client,
        client.stream("POST", path, data={"session_id": SESSION, **form}) as answer,
    ):
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                yield json.loads(line.removeprefix("data:"))

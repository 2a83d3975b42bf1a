"""The Agent Server for the programs of sentence 3: `langgraph dev`, and its client.

Follows https://docs.langchain.com/oss/python/langgraph/local-server and
https://docs.langchain.com/langsmith/langgraph-python-sdk. Here the server runs without an account and
without a key. The first page says that `langgraph dev` is for development and testing. A server for production needs PostgreSQL, Redis
and a license key: https://docs.langchain.com/langsmith/deploy-standalone-server.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import httpx
from langgraph_cli.cli import cli
from langgraph_sdk import get_client
from stage import FOLDER, PORT, effect

URL = f"http://127.0.0.1:{PORT}"


async def serve(program: str) -> None:
    """Serve the agent `DESK` of a program until the process is killed."""
    os.environ["LANGSMITH_TRACING"] = "false"
    config = FOLDER / "langgraph.json"
    config.write_text(json.dumps({"dependencies": ["."], "graphs": {"desk": f"{program}:DESK"}}))
    # The functions of the tools write to a file, so that the server must allow blocking calls.
    options = ["--config", str(config), "--port", str(PORT), "--no-browser", "--no-reload", "--allow-blocking"]
    serving = asyncio.create_task(asyncio.to_thread(cli.main, ["dev", *options]))
    while not await _is_ready() and not serving.done():
        await asyncio.sleep(0.1)
    effect("ready")
    await serving


async def _is_ready() -> bool:
    try:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{URL}/ok")).is_success
    except httpx.TransportError:
        return False


def browser() -> Any:
    """Return a client of the server."""
    return get_client(url=URL)

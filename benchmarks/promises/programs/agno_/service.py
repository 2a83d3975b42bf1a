"""An agent in AgentOS, with SQLite, behind uvicorn. Follows https://docs.agno.com/background-execution/overview.

Only the process that serves imports it, because the import of agno takes some seconds.
"""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from agno.agent import Agent
from agno.db.sqlite import SqliteDb
from agno.models.openai import OpenAIChat
from agno.os import AgentOS
from fastapi import FastAPI
from stage import FOLDER, PORT, effect


async def serve(*tools: Any, hooks: list[Any] | None = None, base_app: FastAPI | None = None) -> None:
    """Serve an agent with these tools until the process is killed."""
    desk = Agent(
        id="desk",
        model=OpenAIChat(id="gpt-5"),
        db=SqliteDb(db_file=str(FOLDER / "agno.db")),
        tools=list(tools),
        tool_hooks=hooks,
        add_history_to_context=True,
        checkpoint="tool-batch",  # also saves the results of a run that has not ended
        telemetry=False,
    )
    app = AgentOS(agents=[desk], base_app=base_app, telemetry=False).get_app()
    server = uvicorn.Server(uvicorn.Config(app, port=PORT, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.02)
    effect("ready")
    await serving

"""What the programs of agent-framework share: the agent, its session, and the answers to approval requests.

They follow https://learn.microsoft.com/en-us/agent-framework/agents/conversations/storage,
https://learn.microsoft.com/en-us/agent-framework/agents/tools/tool-approval and the page of agent-framework-hosting (`AgentState`
with a `FileSessionStore`): https://github.com/microsoft/agent-framework/tree/main/python/packages/hosting
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agent_framework import Agent, AgentSession, Content, FileHistoryProvider, FileSessionStore, Message, tool
from agent_framework.openai import OpenAIChatClient
from agent_framework_hosting import AgentState
from stage import FOLDER

SESSIONS = FileSessionStore(FOLDER / "sessions")
PAUSED = FOLDER / "paused.json"
CHAT = "ann"


def agent(*tools: Any, each_call: bool = False) -> Agent[Any]:
    """Return an agent that stores its history in a file: after each run, or after each call of the model."""
    return Agent(
        OpenAIChatClient(model="gpt-5"),
        name="desk",
        tools=list(tools),
        context_providers=[FileHistoryProvider(FOLDER / "history")],
        default_options={"store": False},
        require_per_service_call_history_persistence=each_call,
    )


def approved(function: Callable[..., Any]) -> Any:
    """Return the function as a tool that needs an approval."""
    return tool(function, approval_mode="always_require")


@asynccontextmanager
async def session_of(desk: Agent[Any]) -> AsyncIterator[AgentSession]:
    """Load the session, and save it after a successful run."""
    state = AgentState(desk, session_store=SESSIONS)
    session = await state.get_or_create_session(CHAT)
    yield session
    await state.set_session(CHAT, session)


async def run(desk: Agent[Any], message: str | Message) -> Any:
    """Run a turn of the conversation."""
    async with session_of(desk) as session:
        return await desk.run(message, session=session)


async def pause(desk: Agent[Any], text: str) -> None:
    """Run until calls wait, and keep the requests."""
    result = await run(desk, text)
    PAUSED.write_text(json.dumps([request.to_dict() for request in result.user_input_requests]))


async def approve_call(desk: Agent[Any], call_id: str) -> None:
    """Approve a call that waits."""
    requests = [Content.from_dict(request) for request in json.loads(PAUSED.read_text())]
    [request] = [request for request in requests if request.function_call.call_id == call_id]
    await run(desk, Message("user", [request.to_function_approval_response(approved=True)]))

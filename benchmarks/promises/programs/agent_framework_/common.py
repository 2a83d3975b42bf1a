"""What the programs of agent-framework share: the agent, its session, and the answers to approval requests.

They follow https://learn.microsoft.com/en-us/agent-framework/agents/conversations/storage,
https://learn.microsoft.com/en-us/agent-framework/agents/tools/tool-approval and the page of agent-framework-hosting (`AgentState`
with a `FileSessionStore`): https://github.com/microsoft/agent-framework/tree/main/python/packages/hosting
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from agent_framework import Agent, AgentSession, Content, FileHistoryProvider, FileSessionStore, Message, tool
from agent_framework.openai import OpenAIChatClient
from agent_framework_hosting import AgentState
from stage import FOLDER

SESSIONS = FileSessionStore(FOLDER / "sessions")
HISTORY = FileHistoryProvider(FOLDER / "history")
PAUSED = FOLDER / "paused.json"
CHAT = "ann"


def agent(
    *tools: Any,
    name: str = "desk",
    instructions: str | None = None,
    each_call: bool = False,
    middleware: Sequence[Any] = (),
) -> Agent[Any]:
    """Return an agent that stores its history in a file: after each run, or after each call of the model."""
    return Agent(
        OpenAIChatClient(model="gpt-5"),
        instructions,
        name=name,
        tools=list(tools),
        middleware=middleware,
        context_providers=[HISTORY],
        default_options={"store": False},
        require_per_service_call_history_persistence=each_call,
    )


def approved(function: Callable[..., Any]) -> Any:
    """Return the function as a tool that needs an approval."""
    return tool(function, approval_mode="always_require")


@asynccontextmanager
async def session_of(desk: Agent[Any], chat: str = CHAT) -> AsyncIterator[AgentSession]:
    """Load the session, and save it after a successful run."""
    state = AgentState(desk, session_store=SESSIONS)
    session = await state.get_or_create_session(chat)
    yield session
    await state.set_session(chat, session)


async def run(desk: Agent[Any], *messages: str | Message, chat: str = CHAT) -> Any:
    """Run a turn of the conversation."""
    async with session_of(desk, chat) as session:
        return await desk.run(list(messages), session=session)


async def closed() -> list[Message]:
    """Return results for the calls of the history that have none.

    "A subsequent run cannot proceed without manually providing the missing FunctionResultContent":
    https://github.com/microsoft/agent-framework/blob/main/docs/decisions/0022-chat-history-persistence-consistency.md
    The record was written for .NET; Python has the same setting, and no page of its own about this. To find the calls, and to
    choose the text, is work of the program.
    """
    contents = [content for message in await HISTORY.get_messages(CHAT) for content in message.contents]
    results = {content.call_id for content in contents if content.type == "function_result"}
    calls = [
        content.call_id for content in contents if content.type == "function_call" and content.call_id not in results
    ]
    text = "interrupted; the outcome is unknown"
    return [Message("tool", [Content.from_function_result(call_id, result=text)]) for call_id in calls]


async def pause(desk: Agent[Any], text: str, chat: str = CHAT) -> None:
    """Run until calls wait, and keep the requests."""
    result = await run(desk, text, chat=chat)
    PAUSED.write_text(json.dumps([request.to_dict() for request in result.user_input_requests]))


async def approve_call(desk: Agent[Any], call_id: str, chat: str = CHAT) -> Any:
    """Approve a call that waits, and return the result of the run that continues."""
    requests = [Content.from_dict(request) for request in json.loads(PAUSED.read_text())]
    [request] = [request for request in requests if request.function_call.call_id == call_id]
    return await run(desk, Message("user", [request.to_function_approval_response(approved=True)]), chat=chat)

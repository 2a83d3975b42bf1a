"""What the programs of Strands Agents share: the agent, its session, and the calls that wait.

They follow https://strandsagents.com/docs/user-guide/concepts/agents/session-management/ and
https://strandsagents.com/docs/user-guide/sdk/agents/interventions/human-in-the-loop/ (interrupt and resume, with a session manager).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from stage import FOLDER, URL
from strands import Agent, ToolContext, tool
from strands.agent import AgentResult
from strands.models.openai import OpenAIModel
from strands.session import FileSessionManager
from strands.types.tools import AgentTool
from strands.vended_interventions.hitl import HumanInTheLoop

WAITING = FOLDER / "waiting.json"  # what the page of a browser remembers


def model() -> OpenAIModel:
    """Return the model. It uses Chat Completions."""
    return OpenAIModel(client_args={"base_url": URL, "api_key": "none"}, model_id="gpt-5")


def session(session_id: str = "ann") -> FileSessionManager:
    """Return the session of all processes."""
    return FileSessionManager(session_id=session_id, storage_dir=str(FOLDER / "sessions"))


def agent(*functions: Callable[..., Any], session_id: str = "ann") -> Agent:
    """Return an agent that continues the session. The function `refund` needs an approval."""
    return Agent(
        name="Desk",
        description="The desk.",
        model=model(),
        tools=[each if isinstance(each, AgentTool) else tool(each) for each in functions],
        session_manager=session(session_id),
        interventions=[HumanInTheLoop(allowed_tools=["*", "!refund"])],
        callback_handler=None,
    )


def remember(result: AgentResult) -> None:
    """Save the ids of the calls that wait, and the question of each."""
    WAITING.write_text(json.dumps({each.id: each.reason for each in result.interrupts or ()}))


def answers(response: str = "y", about: str = "") -> Sequence[Any]:
    """Return the response of a person to the waiting calls whose question has this text."""
    ids = [key for key, question in json.loads(WAITING.read_text()).items() if about in question]
    return [{"interruptResponse": {"interruptId": key, "response": response}} for key in ids]


def stoppable(function: Callable[[], Coroutine[Any, Any, str]]) -> Any:
    """Return the function as a tool that watches the signal of `Agent.cancel()`, as the page of `ToolContext` says."""

    @tool(name=function.__name__, description=function.__doc__, context=True)
    async def watching(tool_context: ToolContext) -> str:
        call = asyncio.create_task(function())
        while not call.done():
            if tool_context.cancel_signal.is_set():
                call.cancel()
                return "Cancelled while it ran. The outcome is unknown."
            await asyncio.sleep(0.02)
        return call.result()

    return watching

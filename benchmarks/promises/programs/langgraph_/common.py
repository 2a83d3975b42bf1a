"""What the programs of LangGraph share: the agent, its checkpoints in SQLite, an approval, and the answers to open calls.

They follow https://docs.langchain.com/oss/python/langchain/agents (`create_agent`),
https://docs.langchain.com/oss/python/langgraph/checkpointers (`AsyncSqliteSaver`, `durability="sync"`),
https://docs.langchain.com/oss/python/concepts/human-in-the-loop (per-call mode), and, for a run that ended inside a call,
https://docs.langchain.com/oss/python/langgraph/errors/INVALID_CHAT_HISTORY. This page asks the program to write the results of open
calls: the framework does not write them, and the text is the program's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.messages import ToolMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command
from stage import FOLDER, GO_ON

THREAD: Any = {"configurable": {"thread_id": "ann"}}
UNKNOWN = "The run was interrupted. This call may have been started, and its outcome is unknown."


def agent(*tools: Any, approve: str = "", system_prompt: str | None = None, checkpointer: Any = None) -> Any:
    """Return an agent. The calls of the tool `approve` wait for an approval, each for its own."""
    review = HumanInTheLoopMiddleware({approve: True}, interrupt_mode="per_call")
    return create_agent(
        "openai:gpt-5",
        tools=list(tools),
        system_prompt=system_prompt,
        middleware=[review] if approve else [],
        checkpointer=checkpointer,
    )


@asynccontextmanager
async def stored(*tools: Any, approve: str = "") -> AsyncIterator[Any]:
    """Open an agent with the checkpoints of all processes."""
    async with AsyncSqliteSaver.from_conn_string(str(FOLDER / "checkpoints.db")) as saver:
        yield agent(*tools, approve=approve, checkpointer=saver)


async def say(desk: Any, text: str) -> None:
    """Run with a message of the user. Each step is written before the next one starts."""
    await desk.ainvoke(said(text), THREAD, durability="sync")


async def approve_call(desk: Any, call_id: str) -> None:
    """Approve one call that waits."""
    waiting = (await desk.aget_state(THREAD)).interrupts
    answers = {each.id: {"type": "approve"} for each in waiting if each.value["tool_call_id"] == call_id}
    await desk.ainvoke(Command(resume=answers), THREAD, durability="sync")


async def go_on_with(desk: Any) -> None:
    """Answer the open calls, and continue the conversation."""
    # The state has the results of finished calls too. A new input would drop them, so the input repeats the messages: `add_messages`
    # replaces a message with the same ID.
    messages = (await desk.aget_state(THREAD)).values["messages"]
    answers = answers_to_open_calls([message.model_dump() for message in messages])
    await desk.ainvoke({"messages": [*messages, *answers, *said(GO_ON)["messages"]]}, THREAD, durability="sync")


def answers_to_open_calls(messages: list[Any]) -> list[ToolMessage]:
    """Return a `ToolMessage` for each call without a result. The run has ended, so no call still runs in it."""
    answered = {message["tool_call_id"] for message in messages if message["type"] == "tool"}
    calls = [call for message in messages if message["type"] == "ai" for call in message["tool_calls"]]
    return [ToolMessage(UNKNOWN, tool_call_id=call["id"]) for call in calls if call["id"] not in answered]


def said(text: str) -> Any:
    """Return the input of a run: a message of the user."""
    return {"messages": [{"role": "user", "content": text}]}

"""What the programs of openai-agents share: the agent, the session and the saved state.

They follow https://openai.github.io/openai-agents-python/sessions/ and .../human_in_the_loop/.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents import Agent, RunState, SQLiteSession, function_tool, set_tracing_disabled
from stage import FOLDER

set_tracing_disabled(True)
STATE = FOLDER / "state.json"


def agent(*tools: Any, name: str = "Desk", instructions: str = "") -> Agent[Any]:
    """Return an agent with these tools. It uses the Responses API, the default."""
    return Agent(name=name, instructions=instructions or None, model="gpt-5", tools=list(tools))


def tool(function: Callable[..., Any], *, needs_approval: bool = False) -> Any:
    """Return the function as a tool."""
    return function_tool(function, needs_approval=needs_approval)


def session() -> SQLiteSession:
    """Return the session of all processes."""
    return SQLiteSession("ann", FOLDER / "sessions.db")


def save(state: RunState[Any, Any]) -> None:
    """Save the paused run, as in "pause, approve, resume". The file is replaced at once."""
    new = Path(f"{STATE}.{os.getpid()}")
    new.write_text(state.to_string())
    new.replace(STATE)


async def load(of: Agent[Any]) -> RunState[Any, Any]:
    """Return the saved run."""
    return await RunState.from_string(of, STATE.read_text())

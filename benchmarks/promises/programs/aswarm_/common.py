"""What the programs of aswarm share: the client of the model, and the store."""

from __future__ import annotations

from openai import AsyncOpenAI
from stage import FOLDER, URL

from aswarm import Agent, AsyncSwarm, tool
from aswarm.conversations import SQLiteStore

STORE = str(FOLDER / "chats.sqlite")


def new_swarm() -> AsyncSwarm:
    """Return a swarm whose model is the scripted server."""
    return AsyncSwarm(AsyncOpenAI(base_url=URL, api_key="none"))


def store() -> SQLiteStore:
    """Return the store of all processes."""
    return SQLiteStore(STORE)


def agent(*functions: object, name: str = "Desk") -> Agent:
    """Return an agent with these functions."""
    return Agent(name=name, model="gpt-5", functions=list(functions))  # type: ignore[arg-type]


def approved(function: object) -> object:
    """Return the function as a tool that needs an approval."""
    return tool(approve=True)(function)  # type: ignore[call-overload]

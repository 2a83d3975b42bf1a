"""One tool of each kind that the plan distinguishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aswarm import Agent, Result
from aswarm._run.call import Call
from aswarm._tools.toolbox import tools_of

AGENT = Agent(name="A")


async def alone(x: str = "") -> str:
    """Async, no context."""
    return x


async def reader(context_variables: Mapping[str, Any]) -> str:
    """Async, reads the context."""
    return str(context_variables)


async def writer(context_variables: dict[str, Any]) -> str:
    """Async, may write to the context."""
    return str(context_variables)


async def untyped(context_variables) -> str:  # type: ignore[no-untyped-def]
    """Async, has the context without a type hint."""
    return str(context_variables)


def plain() -> str:
    """A plain function."""
    return ""


async def changer() -> Result:
    """Async, returns a Result."""
    return Result()


async def silent():  # type: ignore[no-untyped-def]
    """Async, without a return annotation."""


def call_of(function: Any, position: int = 0, name: str | None = None) -> Call:
    """A call of this function."""
    ((found, made),) = tools_of(Agent(functions=[function])).items()
    message = {"id": f"call_{position}", "type": "function", "function": {"name": name or found, "arguments": ""}}
    return Call(message, position, AGENT, made)

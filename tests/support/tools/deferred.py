"""An agent with deferred tools, and the calls of a model that uses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aswarm import Agent, tool
from aswarm.testing import ScriptedCall, call

EFFECTS: list[str] = []


@tool(defer=True)
async def create_issue(title: str, labels: list[str] | None = None) -> str:
    """Create an issue in the tracker.

    Args:
        title: The first line of the issue.
    """
    EFFECTS.append(title)
    return f"created {title} {labels or ''}".strip()


@tool(defer=True, approve=True)
async def delete_issue(number: int) -> str:
    """Delete an issue for ever."""
    EFFECTS.append(f"deleted {number}")
    return f"deleted {number}"


@tool(defer=True)
async def remember(context_variables: dict[str, Any], value: int) -> str:
    """Write a value down."""
    earlier = context_variables.get("value", 0)
    context_variables["value"] = earlier + value
    return f"{earlier} and {value}"


async def read_clock() -> str:
    """Return the time."""
    return "noon"


FUNCTIONS = [create_issue, delete_issue, remember, read_clock]


def tracker(*functions: Any, **options: Any) -> Agent:
    """Return an agent with three deferred tools and one other."""
    return Agent(name="Tracker", instructions="You keep the tracker.", functions=[*FUNCTIONS, *functions], **options)


def search(query: str = "create an issue", call_id: str | None = None) -> ScriptedCall:
    """Return a search."""
    return call("search_tools", query=query, call_id=call_id)


def found(name: str, arguments: Mapping[str, Any] | str, call_id: str | None = None) -> ScriptedCall:
    """Return a call of a tool that a search has found."""
    return call("call_tool", json.dumps({"name": name, "arguments": arguments}), call_id=call_id)

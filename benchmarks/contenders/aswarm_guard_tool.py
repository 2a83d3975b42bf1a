"""aswarm with guards of every call and every result."""

from __future__ import annotations

from clients import openai_client

from aswarm import AsyncSwarm
from aswarm.guards import Block, CheckedCall, CheckedResult, guard_tool

from .aswarm_ import IMPORT, PACKAGES, Aswarm

__all__ = ["IMPORT", "PACKAGES", "open_session"]


async def before(checked: CheckedCall) -> Block | None:
    """Accept the calls of the benchmark."""
    return Block("no such city") if checked.arguments.get("city") == "Nowhere" else None


async def after(checked: CheckedResult) -> Block | None:
    """Accept the results of the functions."""
    return Block("no text") if not checked.text else None


async def open_session(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm, on the same client as the reference."""
    return Aswarm(AsyncSwarm(client=openai_client(url, connections), middleware=[guard_tool(before, after)]))

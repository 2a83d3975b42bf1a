"""aswarm with an async guard of the input, which runs beside the completion."""

from __future__ import annotations

from clients import openai_client

from aswarm import AsyncSwarm
from aswarm.guards import Block, CheckedInput, guard_input

from .aswarm_ import IMPORT, PACKAGES, Aswarm

__all__ = ["IMPORT", "PACKAGES", "open_session"]


async def check(checked: CheckedInput) -> Block | None:
    """Accept the input of the benchmark."""
    return Block("no text") if not checked.text else None


async def open_session(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm, on the same client as the reference."""
    return Aswarm(AsyncSwarm(client=openai_client(url, connections), middleware=[guard_input(check)]))

"""aswarm with a guard that checks each answer before it is released."""

from __future__ import annotations

from clients import openai_client

from aswarm import AsyncSwarm
from aswarm.guards import Block, CheckedAnswer, hold_answer

from .aswarm_ import IMPORT, PACKAGES, Aswarm

__all__ = ["IMPORT", "PACKAGES", "open_session"]


async def check(checked: CheckedAnswer) -> Block | None:
    """Accept the answer."""
    return Block("no text") if not checked.text else None


async def open_session(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm, on the same client as the reference."""
    return Aswarm(AsyncSwarm(client=openai_client(url, connections), middleware=[hold_answer(check)]))

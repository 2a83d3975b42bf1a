"""aswarm over the Responses API."""

from __future__ import annotations

from clients import openai_client

from aswarm import AsyncSwarm

from .aswarm_ import IMPORT, PACKAGES, Aswarm

__all__ = ["IMPORT", "PACKAGES", "open_session"]


async def open_session(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm, on the same client as the reference."""
    return Aswarm(AsyncSwarm(client=openai_client(url, connections), api="responses"))

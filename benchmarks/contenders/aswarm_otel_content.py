"""The same with messages, arguments and results in the spans."""

from __future__ import annotations

from clients import openai_client

from aswarm import AsyncSwarm

from .aswarm_ import PACKAGES, Aswarm
from .aswarm_otel import IMPORT, traced

__all__ = ["IMPORT", "PACKAGES", "open_session"]


async def open_session(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm, on the same client as the reference."""
    return Aswarm(AsyncSwarm(client=openai_client(url, connections), middleware=[traced(content=True)]))

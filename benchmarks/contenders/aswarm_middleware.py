"""aswarm with a middleware that does nothing: the cost of any middleware."""

from __future__ import annotations

from clients import openai_client

from aswarm import AsyncSwarm
from aswarm.middleware import Handlers

from .aswarm_ import IMPORT, PACKAGES, Aswarm

__all__ = ["IMPORT", "PACKAGES", "open_session"]


def nothing(handlers: Handlers) -> Handlers:
    """Change nothing."""
    return handlers


async def open_session(url: str, connections: int | None = None) -> Aswarm:
    """Make the swarm, on the same client as the reference."""
    return Aswarm(AsyncSwarm(client=openai_client(url, connections), middleware=[nothing]))

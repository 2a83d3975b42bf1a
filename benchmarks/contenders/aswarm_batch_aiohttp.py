"""aswarm's batch runner on the SDK's aiohttp transport."""

from __future__ import annotations

from .aswarm_aiohttp import PACKAGES, OnAiohttp, swarm_at
from .aswarm_batch import IMPORT, AswarmBatch

__all__ = ["IMPORT", "PACKAGES", "open_session"]


class BatchOnAiohttp(AswarmBatch, OnAiohttp):
    """The same, on a client made by the swarm."""


async def open_session(url: str, connections: int | None = None) -> BatchOnAiohttp:
    """Make the swarm; its pool has no limit, for any value of `connections`."""
    return BatchOnAiohttp(swarm_at(url))

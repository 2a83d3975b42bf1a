"""aswarm on the SDK's aiohttp transport, for thousands of conversations at once (asyncio only)."""

from __future__ import annotations

import os

from scenario import API_KEY

from aswarm import AsyncSwarm

from .aswarm_ import IMPORT, Aswarm

__all__ = ["IMPORT", "PACKAGES", "open_session"]
PACKAGES = ("aswarm", "openai", "aiohttp", "anyio")


class OnAiohttp(Aswarm):
    """The same conversation, on a client made by the swarm."""

    async def close(self) -> None:
        """Close the client."""
        await self.swarm.aclose()


def swarm_at(url: str) -> AsyncSwarm:
    """Return a swarm whose own client uses the server at `url`."""
    os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY=API_KEY)
    return AsyncSwarm(transport="aiohttp")


async def open_session(url: str, connections: int | None = None) -> OnAiohttp:
    """Make the swarm; its pool has no limit, for any value of `connections`."""
    return OnAiohttp(swarm_at(url))

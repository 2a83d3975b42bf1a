"""aswarm on its direct source, without the openai package."""

from __future__ import annotations

import os

from scenario import API_KEY

from aswarm import AsyncSwarm

from .aswarm_ import IMPORT, Aswarm

__all__ = ["IMPORT", "PACKAGES", "open_session"]
PACKAGES = ("aswarm", "aiohttp", "anyio")


class Direct(Aswarm):
    """The same conversation, on a source made by the swarm."""

    async def close(self) -> None:
        """Close the source."""
        await self.swarm.aclose()


def swarm_at(url: str) -> AsyncSwarm:
    """Return a swarm whose own source uses the server at `url`."""
    os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY=API_KEY)
    return AsyncSwarm(transport="direct")


async def open_session(url: str, connections: int | None = None) -> Direct:
    """Make the swarm; its pool has no limit, for any value of `connections`."""
    return Direct(swarm_at(url))

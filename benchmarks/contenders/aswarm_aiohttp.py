"""aswarm on the SDK's aiohttp transport, for very many conversations at once (asyncio only)."""

from __future__ import annotations

import inspect
import os

import openai
from clients import limits
from scenario import API_KEY

from aswarm import AsyncSwarm

from .aswarm_ import IMPORT, Aswarm

__all__ = ["IMPORT", "PACKAGES", "open_session"]
PACKAGES = ("aswarm", "openai", "aiohttp", "httpx-aiohttp", "anyio")
# None would not do: with it, the SDK leaves aiohttp at its own limit of 100.
_UNBOUNDED = 100_000
# The SDK's 5 s for a connection pass while thousands of conversations begin in one event loop.
_SECONDS = 600.0


class OnAiohttp(Aswarm):
    """The same conversation."""

    async def close(self) -> None:
        """Close the client, which the swarm has made, or was given."""
        await self.swarm.client.close()


async def open_session(url: str, connections: int | None = None) -> OnAiohttp:
    """Make the swarm; its pool has no limit, whatever `connections` is."""
    if "transport" in inspect.signature(AsyncSwarm).parameters:
        os.environ.update(OPENAI_BASE_URL=url, OPENAI_API_KEY=API_KEY)
        options: dict[str, str] = {"transport": "aiohttp"}
        return OnAiohttp(AsyncSwarm(**options))  # type: ignore[arg-type]
    http_client = openai.DefaultAioHttpClient(limits=limits(_UNBOUNDED), timeout=_SECONDS)
    client = openai.AsyncOpenAI(base_url=url, api_key=API_KEY, http_client=http_client, timeout=_SECONDS)
    return OnAiohttp(AsyncSwarm(client=client))

"""aswarm's batch runner, which reads items one by one and yields outcomes as they finish."""

from __future__ import annotations

from collections.abc import AsyncIterator

from clients import openai_client
from scenario import QUESTION

from aswarm import AsyncSwarm

from .aswarm_ import IMPORT, PACKAGES, A, Aswarm

__all__ = ["IMPORT", "PACKAGES", "AswarmBatch", "open_session"]


class AswarmBatch(Aswarm):
    """`AsyncSwarm.batch`, for the figures with many conversations."""

    def journal(self) -> str | None:
        """Return the path of the journal; None for no journal."""
        return None

    async def hold(self, total: int, at_once: int) -> AsyncIterator[str]:
        """Yield the answers of `total` conversations."""
        items = (QUESTION for _ in range(total))
        async with self.swarm.batch(A, items, concurrency=at_once, attempts=1, journal=self.journal()) as outcomes:
            async for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error
                yield "" if outcome.response is None else outcome.response.text


async def open_session(url: str, connections: int | None = None) -> AswarmBatch:
    """Make the swarm, on the same client as the reference."""
    return AswarmBatch(AsyncSwarm(client=openai_client(url, connections)))

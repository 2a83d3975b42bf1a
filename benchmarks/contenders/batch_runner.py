"""aswarm's batch runner, which reads items one by one and yields outcomes as they finish; with and without a journal."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from scenario import QUESTION

from aswarm import AsyncSwarm

from .aswarm_ import A, Aswarm, Close, on_openai, on_own_client


class BatchRunner(Aswarm):
    """`AsyncSwarm.batch`, for the figures with many conversations."""

    def journal_path(self) -> str | None:
        """Return the path of the journal; None for no journal."""
        return None

    async def hold(self, total: int, at_once: int) -> AsyncIterator[str]:
        """Yield the answers of `total` conversations."""
        items, path = (QUESTION for _ in range(total)), self.journal_path()
        async with self.swarm.batch(A, items, concurrency=at_once, attempts=1, journal=path) as outcomes:
            async for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error
                yield "" if outcome.response is None else outcome.response.text


class WithJournal(BatchRunner):
    """Every step is recorded on the disk of the temporary files, each batch in its own file."""

    def __init__(self, swarm: AsyncSwarm, close: Close) -> None:
        super().__init__(swarm, close)
        self._folder = tempfile.TemporaryDirectory()
        self._batches = 0

    def journal_path(self) -> str:
        """Return the path of a new file."""
        self._batches += 1
        return str(Path(self._folder.name, f"{self._batches}.sqlite"))

    async def close(self) -> None:
        """Close the client and remove the files."""
        await super().close()
        self._folder.cleanup()


async def open_session(url: str, connections: int | None = None) -> BatchRunner:
    """Make the swarm, on the same client as the reference."""
    return BatchRunner(*on_openai(url, connections))


async def aiohttp(url: str, connections: int | None = None) -> BatchRunner:
    """Make the swarm, on the SDK's aiohttp transport."""
    return BatchRunner(*on_own_client(url, "aiohttp"))


async def journal(url: str, connections: int | None = None) -> BatchRunner:
    """Make the swarm, on the same client as the reference."""
    return WithJournal(*on_openai(url, connections))


async def journal_aiohttp(url: str, connections: int | None = None) -> BatchRunner:
    """Make the swarm, on the SDK's aiohttp transport."""
    return WithJournal(*on_own_client(url, "aiohttp"))

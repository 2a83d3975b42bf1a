"""aswarm's batch runner with a journal, on the disk of the temporary files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from clients import openai_client

from aswarm import AsyncSwarm

from .aswarm_batch import IMPORT, PACKAGES, AswarmBatch

__all__ = ["IMPORT", "PACKAGES", "AswarmJournal", "open_session"]


class AswarmJournal(AswarmBatch):
    """Every step is recorded, each batch in its own file."""

    def __init__(self, swarm: AsyncSwarm) -> None:
        super().__init__(swarm)
        self._folder = tempfile.TemporaryDirectory()
        self._batches = 0

    def journal(self) -> str:
        """Return the path of a new file."""
        self._batches += 1
        return str(Path(self._folder.name, f"{self._batches}.sqlite"))

    async def close(self) -> None:
        """Close the client and remove the files."""
        await super().close()
        self._folder.cleanup()


async def open_session(url: str, connections: int | None = None) -> AswarmJournal:
    """Make the swarm, on the same client as the reference."""
    return AswarmJournal(AsyncSwarm(client=openai_client(url, connections)))

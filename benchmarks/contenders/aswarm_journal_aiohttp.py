"""aswarm's batch runner with a journal, on the SDK's aiohttp transport."""

from __future__ import annotations

from .aswarm_aiohttp import PACKAGES, OnAiohttp, swarm_at
from .aswarm_batch import IMPORT
from .aswarm_journal import AswarmJournal

__all__ = ["IMPORT", "PACKAGES", "open_session"]


class JournalOnAiohttp(AswarmJournal, OnAiohttp):
    """The same, on a client made by the swarm."""


async def open_session(url: str, connections: int | None = None) -> JournalOnAiohttp:
    """Make the swarm; its pool has no limit, for any value of `connections`."""
    return JournalOnAiohttp(swarm_at(url))

"""Fixtures of the tests of conversations: an open store of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aswarm.conversations import MemoryStore, PostgresStore, SQLiteStore, Store
from tests.support.conversations.stores import empty_schema


@pytest.fixture
def conninfo(postgres: str) -> str:
    """The connection string of an empty schema."""
    return empty_schema(postgres)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of a store that does not exist yet."""
    return tmp_path / "chats.sqlite"


@pytest.fixture
async def store(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """An open store without conversations. A module that uses it names the kinds with a fixture `kind`."""
    if kind.startswith("memory"):
        made: MemoryStore | SQLiteStore | PostgresStore = MemoryStore()
    elif kind.startswith("sqlite"):
        made = SQLiteStore(request.getfixturevalue("path"))
    else:
        made = PostgresStore(request.getfixturevalue("conninfo"))
    async with made as opened:
        yield opened

"""These tests need dbos."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.conversations.stores import emptied_database
from tests.support.durable.durables import Shop

collect_ignore_glob = [] if importlib.util.find_spec("dbos") else ["test_*.py"]


@pytest.fixture
def shop() -> Shop:
    """The agents of a test, which count their calls."""
    importlib.import_module(
        "dbos"
    )  # here, because the first import starts a process, which an unmarked test must not do
    return Shop()


@pytest.fixture
def url(postgres: str) -> str:
    """An empty database of PostgreSQL."""
    return emptied_database(postgres)

"""Fixtures for the tests of durable runs."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def shop() -> Any:
    """The agents of a test, which count their calls."""
    pytest.importorskip("dbos", reason="durable runs need dbos")
    from tests.support.durable.durables import Shop

    return Shop()

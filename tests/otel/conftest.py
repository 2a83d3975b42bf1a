"""The traces of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.otel.traces import Traces, traced


@pytest.fixture
def traces() -> Iterator[Traces]:
    """Traces that are checked after the test: nothing is open, current or logged."""
    with traced() as recorded:
        yield recorded

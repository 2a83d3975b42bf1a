"""Transcripts are run side by side: most of a run is spent importing, and no run knows of another."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

# The differences of a transcript are shown as for an assertion in a test.
pytest.register_assert_rewrite("tests.examples.transcripts")

from tests.examples.transcripts import Runs, run_transcript  # noqa: E402 - only after that

WORKERS = 4


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """The run of every transcript that a test of this session asks for, under way."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function))
    wanted: list[Any] = [item.callspec.params["transcript"] for item in items if "runs" in item.fixturenames]
    with ThreadPoolExecutor(WORKERS) as pool:
        yield {transcript: pool.submit(run_transcript, transcript) for transcript in wanted}

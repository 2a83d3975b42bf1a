"""What the tests share: both backends, and a check that a test leaves nothing running."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

# These assert for the tests; what they compare shall be shown as if a test had asserted it.
pytest.register_assert_rewrite("blocking", "faces", "leaving", "leaving_moments", "wire_cases")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Tests marked `anyio` run on both; tests marked `asyncio` run on pytest-asyncio's loop."""
    return request.param


@pytest_asyncio.fixture
async def nothing_left() -> AsyncIterator[list[dict[str, Any]]]:
    """Fails a test (asyncio) that leaves a task, or anything in the event loop's exception handler."""
    loop = asyncio.get_running_loop()
    reported: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    before = asyncio.all_tasks()
    yield reported
    gc.collect()
    left: set[asyncio.Task[Any]] = set()
    for _ in range(20):
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            break
        await asyncio.sleep(0.01)
    assert not left, f"tasks left: {left}"
    assert not reported, f"the exception handler was called: {reported}"

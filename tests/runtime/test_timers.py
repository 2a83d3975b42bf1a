"""Functions that an event loop calls after some seconds."""

from __future__ import annotations

import anyio

from aswarm._runtime.backend import call_later


async def test_a_call_can_be_cancelled() -> None:
    """A cancelled call never happens; another call happens on the event loop."""
    called, event = list[str](), anyio.Event()
    call_later(0.01, lambda: called.append("cancelled"))()
    call_later(0.02, event.set)
    await event.wait()
    assert called == []

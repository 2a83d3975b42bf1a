"""Instructions that raise a cancellation have failed, unless their run is cancelled."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from aswarm import Agent, Response, RunError
from tests.support.leaving.run_scenes import until
from tests.support.run.ways_to_run import FACES, cancel_when, consume, swarm_of

Instructions = Callable[[], Any]


async def raises() -> str:
    """Raise the exception directly."""
    raise asyncio.CancelledError("stale")


def raises_plainly() -> str:
    """Raise it in a worker thread."""
    raise asyncio.CancelledError("stale")


async def awaits_cancelled() -> str:
    """Wait for a future that other code has cancelled."""
    other: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    other.cancel()
    return await other


@pytest.mark.asyncio
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("instructions", [raises, raises_plainly, awaits_cancelled])
async def test_a_cancellation_of_their_own_is_a_failure(instructions: Instructions, face: str) -> None:
    """The run ends with a RunError that names the agent, and its task is not cancelled."""
    left: list[Response] = []
    agent = Agent(name="Desk", instructions=instructions)
    with pytest.raises(RunError, match="the instructions of 'Desk' were cancelled, but not by their run") as caught:
        await consume(swarm_of(), agent, face, left)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert left[0].stop == "error"
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("plain", [True, False])
async def test_a_cancelled_run_is_cancelled_in_its_instructions(face: str, plain: bool) -> None:
    """A scope that is cancelled while instructions run ends the run as cancelled."""
    started, cancelled = threading.Event(), threading.Event()

    async def waits() -> str:
        started.set()
        await anyio.sleep_forever()
        return "never"

    def blocks() -> str:
        started.set()
        cancelled.wait(120)
        return "late"

    agent = Agent(instructions=blocks if plain else waits)
    response = await cancel_when(started.is_set, swarm_of(), agent, face, then=cancelled.set)
    assert response.messages == []


@pytest.mark.asyncio
@pytest.mark.parametrize("again", [raises, None])
async def test_a_cancelled_task_is_cancelled_in_its_instructions(again: Callable[[], Awaitable[str]] | None) -> None:
    """`task.cancel()` ends the run as cancelled, also if the instructions raise a new CancelledError."""
    begun: list[bool] = []

    async def waits() -> str:
        begun.append(True)
        try:
            await anyio.sleep_forever()
        finally:
            if again is not None and sys.exc_info()[0] is asyncio.CancelledError:
                await again()
        return "never"

    left: list[Response] = []
    task = asyncio.create_task(consume(swarm_of(), Agent(instructions=waits), "run", left))
    await until(lambda: begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert left[0].stop == "cancelled"

"""Leaving runs inside tools and runs beside runs, and streams at their start and their end."""

from __future__ import annotations

import asyncio
import gc

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Response, TextDelta, tool
from aswarm.testing import ScriptedAnswer, ScriptedModel
from tests.support.leaving.run_scenes import USER, nothing_left_behind, until
from tests.support.run.ways_to_run import FACES, answers, cancel_when, consume, swarm_of


# --- runs in tools, runs beside runs ----------------------------------------------------------------------------------
@pytest.mark.parametrize("face", FACES)
async def test_a_neighbour_does_not_notice(face: str) -> None:
    """A run that is left does not touch another run of its swarm and its agent; the limiter gets its token back."""
    token = anyio.CapacityLimiter(1)
    gate = anyio.Event()
    holds: list[str] = []

    @tool(limiter=token)
    async def work() -> str:
        holds.append("work")
        await gate.wait()
        return "worked"

    swarm, agent = swarm_of("work"), Agent(functions=[work])
    left: list[Response] = []
    async with anyio.create_task_group() as group:
        await cancel_when(lambda: holds, swarm, agent, face)
        assert token.available_tokens == 1
        group.start_soon(consume, swarm, agent, face, left)
        await until(lambda: len(holds) == 2)
        await cancel_when(lambda: token.statistics().tasks_waiting, swarm, agent, face)
        gate.set()
    assert left[0].text == "done"
    assert answers(left[0]) == {"work": "worked"}
    assert token.available_tokens == 1


# --- edges of streams -------------------------------------------------------------------------------------------------
async def test_a_stream_that_was_never_read_leaves_nothing() -> None:
    """A stream that is dropped or closed without a step makes no request and no task, and its response is empty."""
    model = ScriptedModel([])
    swarm, agent = AsyncSwarm(model.client()), Agent()
    async with nothing_left_behind():
        swarm.stream(agent, [USER])
        swarm.run(agent, [USER], stream=True)
        closed = swarm.run(agent, [USER], stream=True)
        await closed.aclose()
        async with swarm.stream(agent, [USER]) as run:
            pass
        gc.collect()
        assert closed.response.messages == run.response.messages == []
        assert closed.response.stop == run.response.stop == "cancelled"
        with pytest.raises(StopAsyncIteration):
            await anext(closed)
    assert model.requests == []


async def test_the_answer_of_the_model_is_closed_before_its_reader_continues() -> None:
    """A reader that leaves a run does not wait for the garbage collection to close the answer."""
    model = ScriptedModel(["Hello there"], cut=4)
    async with AsyncSwarm(model.client()).stream(Agent(), [USER]) as run:
        async for event in run:
            if isinstance(event, TextDelta):
                break
        assert model.open_streams == 1
    assert model.open_streams == 0


@pytest.mark.asyncio
async def test_each_step_may_have_a_timeout_of_its_own() -> None:
    """`asyncio.wait_for` around single steps moves the run from task to task; a timeout ends the run."""
    model = ScriptedModel([ScriptedAnswer("Hello", pause=0.03), "never"], cut=1)
    stream = AsyncSwarm(model.client()).run(Agent(), [USER], stream=True)
    async with nothing_left_behind():
        with pytest.raises(TimeoutError):  # noqa: PT012 - some step times out
            while True:
                seconds = 0.001 if stream.partial == "He" else 5
                await asyncio.wait_for(anext(stream), seconds)
        assert (stream.partial, stream.response.messages, stream.response.stop) == ("He", [], "cancelled")
        assert model.open_streams == 0
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

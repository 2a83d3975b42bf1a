"""Leaving runs inside tools and runs beside runs, and streams at their start and their end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, TextDelta, tool
from aswarm.testing import ScriptedAnswer, ScriptedModel, call, check_history
from tests.support.leaving.run_scenes import UNKNOWN, USER, nothing_left_behind, until
from tests.support.run.ways_to_run import FACES, answers, cancel_when, consume, swarm_of

# --- runs in tools, runs beside runs ----------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("outer", FACES)
@pytest.mark.parametrize("inner", FACES)
async def test_a_run_inside_a_tool_is_left_with_it(inner: str, outer: str) -> None:
    """A run that a tool has started ends when the run around it is cancelled: its response is closed."""
    slow = ScriptedAnswer("Hello", delay=30) if inner == "run" else ScriptedAnswer("Hello, world" * 100, pause=0.01)
    asked = ScriptedModel(lambda _: slow, cut=1)
    left: list[Response] = []

    async def ask() -> str:
        await consume(AsyncSwarm(asked.client()), Agent(name="inner"), inner, left)
        return "never"

    async with nothing_left_behind():
        response = await cancel_when(lambda: asked.requests, swarm_of("ask"), Agent(functions=[ask]), outer)
        assert answers(response) == {"ask": UNKNOWN}
        assert left[0].messages == []
        assert asked.open_streams == 0


@pytest.mark.anyio
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


@pytest.mark.anyio
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


@pytest.mark.anyio
async def test_the_answer_of_the_model_is_closed_before_its_reader_continues() -> None:
    """A reader that leaves a run does not wait for the garbage collection to close the answer."""
    model = ScriptedModel(["Hello there"], cut=4)
    async with AsyncSwarm(model.client()).stream(Agent(), [USER]) as run:
        async for event in run:
            if isinstance(event, TextDelta):
                break
        assert model.open_streams == 1
    assert model.open_streams == 0


@pytest.mark.anyio
async def test_a_stream_read_to_its_end_is_not_cancelled_by_being_left() -> None:
    """Leaving after the last event changes nothing."""
    swarm = AsyncSwarm(ScriptedModel(["done"]).client())
    async with swarm.stream(Agent(), [USER]) as run:
        async for _ in run:
            pass
    await run.aclose()
    assert run.response.stop == "answer"
    assert run.partial == ""


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


@pytest.mark.parametrize("face", FACES[1:])
def test_the_event_loop_may_end_around_a_stream(face: str, capfd: pytest.CaptureFixture[str]) -> None:
    """`asyncio.run` that returns while a stream is held closes the stream, and reports nothing."""
    ended: list[str] = []
    kept: list[Any] = []

    async def work() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("work")
        return ""

    async def own() -> AsyncIterator[Any]:
        async with swarm_of("work").stream(Agent(functions=[work]), [USER]) as run:
            async for event in run:
                yield event

    async def main() -> None:
        reported: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        kept.append(reported)
        source = own() if face == "stream" else swarm_of("work").run(Agent(functions=[work]), [USER], stream=True)
        kept.append(source)
        async for event in source:
            if event == {"delim": "end"} or type(event).__name__ == "ToolCallStarted":
                break
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert kept[0] == []
    assert ended == (["work"] if face == "stream" else [])
    assert capfd.readouterr().err == ""


@pytest.mark.anyio
async def test_a_configuration_error_after_a_handoff_ends_everything_too() -> None:
    """A handoff to a broken agent is an error with a valid response, and the first agent stays active."""
    broken = Agent(name="broken", functions=[42])
    source = Agent(functions=[broken])
    swarm = AsyncSwarm(ScriptedModel([call("transfer_to_broken")]).client())
    with pytest.raises(ConfigurationError) as caught:
        await swarm.run(source, [USER])
    assert caught.value.response is not None
    check_history([USER, *caught.value.response.messages])
    assert caught.value.response.agent is source

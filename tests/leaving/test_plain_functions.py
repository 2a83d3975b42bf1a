"""A run that is left while plain functions run: it waits for them, abandons them, or has not started them."""

from __future__ import annotations

from threading import Event
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Result, tool
from aswarm.testing import ScriptedModel
from tests.support.leaving.run_scenes import UNKNOWN, USER, nothing_left_behind, until
from tests.support.run.ways_to_run import FACES, answers, calls_then_done, cancel_when, swarm_of

EACH_FACE = pytest.mark.parametrize("face", FACES)


def one_thread() -> tuple[ScriptedModel, AsyncSwarm]:
    """Return a model that calls every function of the agent, and a swarm with one thread."""
    model = ScriptedModel(lambda request: calls_then_done(*request.tool_names)(request))
    return model, AsyncSwarm(model.client(), max_threads=1)


@pytest.mark.parametrize("fails", [False, True])
@EACH_FACE
async def test_a_cancelled_run_waits_for_a_plain_function(face: str, fails: bool) -> None:
    """A function in a thread cannot be interrupted: the run keeps its result and its writes, or its error."""
    begun, cancelled, ended = Event(), Event(), Event()

    def work(context_variables: dict[str, Any]) -> Result:
        begun.set()
        assert cancelled.wait(120)
        context_variables["written"] = True
        ended.set()
        if fails:
            raise ValueError("broken")
        return Result(value="worked", context_variables={"merged": True})

    async with nothing_left_behind():
        swarm, agent = swarm_of("work"), Agent(functions=[work])
        response = await cancel_when(begun.is_set, swarm, agent, face, then=cancelled.set)
        assert ended.is_set()
        assert answers(response) == {"work": "Error: ValueError: broken" if fails else "worked"}
        if not fails:
            assert response.context_variables == {"written": True, "merged": True}


@EACH_FACE
async def test_an_abandoned_function_is_not_awaited_and_holds_its_token(face: str) -> None:
    """With `abandon_on_cancel=True` the caller continues at once; the token of threads comes back when the thread ends."""
    begun, gate, second = Event(), Event(), Event()

    @tool(abandon_on_cancel=True)
    def work(context_variables: dict[str, Any]) -> str:
        begun.set()
        context_variables["written"] = True
        gate.wait(120)
        return "worked"

    def work_too() -> str:
        second.set()
        return "worked too"

    _, swarm = one_thread()
    try:
        async with nothing_left_behind():
            response = await cancel_when(begun.is_set, swarm, Agent(functions=[work]), face)
            assert answers(response)["work"].startswith(UNKNOWN)
            assert "may still be running" in answers(response)["work"]
            assert response.context_variables == {}, "it worked on a copy, which is merged only if it returns in time"
            async with anyio.create_task_group() as group:
                group.start_soon(swarm.run, Agent(functions=[work_too]), [USER])
                await anyio.sleep(0.03)
                assert not second.is_set(), "the token was given away while the thread still ran"
                gate.set()
            assert second.is_set()
    finally:
        gate.set()


@EACH_FACE
async def test_a_function_that_waits_for_a_thread_has_not_started(face: str) -> None:
    """A call that waits for a token of the threads stays open, and runs when the run is resumed."""
    begun, gate = Event(), Event()
    ran: list[str] = []

    def hold() -> str:
        begun.set()
        gate.wait(120)
        return "held"

    def work() -> str:
        ran.append("work")
        return "worked"

    model, swarm = one_thread()
    agent = Agent(functions=[work])
    async with anyio.create_task_group() as group:
        group.start_soon(swarm.run, Agent(functions=[hold]), [USER])
        await until(begun.is_set)
        try:
            response = await cancel_when(lambda: len(model.requests) == 2, swarm, agent, face)
        finally:
            gate.set()
    assert (answers(response), ran) == ({}, [])
    resumed = await swarm.run(agent, [USER, *response.messages], resume=True)
    assert (answers(resumed), ran) == ({"work": "worked"}, ["work"])

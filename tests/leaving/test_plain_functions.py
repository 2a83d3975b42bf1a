"""A run that is left while plain functions run: what is waited for, what is abandoned, what never starts."""

from __future__ import annotations

from threading import Event
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Result, tool
from aswarm.testing import ScriptedModel
from tests.support.leaving.run_scenes import UNKNOWN, USER, nothing_left_behind, until
from tests.support.run.ways_to_run import FACES, answers, calls_then_done, cancel_when, swarm_of


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_cancelled_run_waits_for_a_plain_function(face: str) -> None:
    """A function in a thread cannot be interrupted: it is waited for, its result and its writes are kept."""
    begun, cancelled, ended = Event(), Event(), Event()

    def work(context_variables: dict[str, Any]) -> Result:
        begun.set()
        assert cancelled.wait(120)
        context_variables["written"] = True
        ended.set()
        return Result(value="worked", context_variables={"merged": True})

    async with nothing_left_behind():
        swarm, agent = swarm_of("work"), Agent(functions=[work])
        response = await cancel_when(begun.is_set, swarm, agent, face, then=cancelled.set)
        assert ended.is_set()
        assert answers(response) == {"work": "worked"}
        assert response.context_variables == {"written": True, "merged": True}


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_an_error_of_a_plain_function_is_kept_too(face: str) -> None:
    """A function that fails while the run is being cancelled has failed: that is its real outcome."""
    begun, cancelled = Event(), Event()

    def work() -> str:
        begun.set()
        assert cancelled.wait(120)
        raise ValueError("broken")

    swarm, agent = swarm_of("work"), Agent(functions=[work])
    response = await cancel_when(begun.is_set, swarm, agent, face, then=cancelled.set)
    assert answers(response) == {"work": "Error: ValueError: broken"}


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_coroutine_from_a_plain_function_is_cancelled_like_any(face: str) -> None:
    """What a plain function returns to be awaited is not awaited to its end by a cancelled run."""
    begun = Event()

    async def rest() -> str:
        begun.set()
        await anyio.sleep_forever()
        return "never"

    def work() -> Any:
        return rest()

    response = await cancel_when(begun.is_set, swarm_of("work"), Agent(functions=[work]), face)
    assert answers(response) == {"work": UNKNOWN}


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_an_abandoned_function_is_not_awaited_and_holds_its_token(face: str) -> None:
    """`abandon_on_cancel=True`: the caller goes on at once; the token of threads comes back when the thread ends."""
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

    swarm = swarm_of("work", max_threads=1)
    agent = Agent(functions=[work])
    try:
        async with nothing_left_behind():
            response = await cancel_when(begun.is_set, swarm, agent, face)
            assert answers(response)["work"].startswith(UNKNOWN)
            assert "may still be running" in answers(response)["work"]
            assert response.context_variables == {}, "it worked on a copy, which is merged only if it returns in time"
            other = AsyncSwarm(ScriptedModel(calls_then_done("work_too")).client())
            other._runners = swarm._runners
            async with anyio.create_task_group() as group:
                group.start_soon(other.run, Agent(functions=[work_too]), [USER])
                await anyio.sleep(0.03)
                assert not second.is_set(), "the token was given away while the thread still ran"
                gate.set()
            assert second.is_set()
    finally:
        gate.set()


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_function_that_waits_for_a_thread_never_started(face: str) -> None:
    """A call that waits for a token of the threads has not started: it stays open, and is run when resumed."""
    begun, gate = Event(), Event()
    ran: list[str] = []

    def hold() -> str:
        begun.set()
        gate.wait(120)
        return "held"

    def work() -> str:
        ran.append("work")
        return "worked"

    # One model for both: it calls what the agent offers.
    model = ScriptedModel(lambda request: calls_then_done(*request.tool_names)(request))
    swarm = AsyncSwarm(model.client(), max_threads=1)
    agent = Agent(functions=[work])
    async with anyio.create_task_group() as group:
        group.start_soon(swarm.run, Agent(functions=[hold]), [USER])
        await until(begun.is_set)
        try:
            response = await cancel_when(lambda: len(model.requests) == 2, swarm, agent, face)
        finally:
            gate.set()
    assert answers(response) == {}
    assert ran == []
    resumed = await swarm.run(agent, [USER, *response.messages], resume=True)
    assert answers(resumed) == {"work": "worked"}
    assert ran == ["work"]


@pytest.mark.anyio
async def test_plain_instructions_are_awaited_too() -> None:
    """A cancelled run waits for plain instructions, which run in a thread as well."""
    begun, cancelled, ended = Event(), Event(), Event()

    def instructions() -> str:
        begun.set()
        assert cancelled.wait(120)
        ended.set()
        return "Be brief."

    await cancel_when(begun.is_set, swarm_of(), Agent(instructions=instructions), "run", then=cancelled.set)
    assert ended.is_set()

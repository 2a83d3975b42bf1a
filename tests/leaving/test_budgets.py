"""Leaving a run that has a budget, and runs that their budget ends in the middle: over real sockets."""

from __future__ import annotations

import anyio
import pytest

from aswarm import AsyncSwarm, Budget
from aswarm.testing import check_history
from tests.support.leaving.leave_points import MOMENTS, check_left, scene_of
from tests.support.leaving.run_scenes import USER, Journey, Scene, nothing_left_behind, settle, until
from tests.support.run.ways_to_run import FACES
from tests.support.sampling import every

WIDE = Budget(turns=9, tokens=9999, seconds=60, tool_calls=99, repeats=9, handoffs=9, then="answer")
LEFT = ("before the head", "mid-token", "async tool", "function in a thread", "several in one group", "after a handoff")
CUT = (
    "before the head",
    "mid-token",
    "async tool",
    "shielded cleanup",
    "waiting for a limiter",
    "function in a thread",
)
BACKENDS = ("asyncio", "trio")


def limit(scene: Scene, budget: Budget) -> None:
    """Give the runs of the scene this budget."""
    scene.swarm = AsyncSwarm(scene.swarm.client, budget=budget)


@pytest.mark.parametrize(("name", "face", "anyio_backend"), every(4, LEFT, FACES, BACKENDS))
async def test_leaving_a_run_with_a_budget(name: str, face: str) -> None:
    """A budget that is not used up changes nothing."""
    moment = MOMENTS[name]
    async with scene_of(moment) as scene, nothing_left_behind():
        limit(scene, WIDE)
        journey = Journey(scene, face)
        async with anyio.create_task_group() as group:
            group.start_soon(journey.travel)
            await until(lambda: moment.reached(scene, journey))
            await settle()
            group.cancel_scope.cancel()
        await check_left(scene, moment, journey, anyio.current_time())


@pytest.mark.parametrize(("name", "face", "anyio_backend"), every(4, CUT, FACES, BACKENDS))
async def test_a_budget_that_ends_a_run_in_the_middle(name: str, face: str) -> None:
    """The response is closed, no tool runs, and the history is valid."""
    moment = MOMENTS[name]
    async with scene_of(moment) as scene, nothing_left_behind():
        scene.deeds.seconds_in_thread = 0.6
        limit(scene, Budget(seconds=0.25))
        journey = Journey(scene, face)
        with anyio.fail_after(120):
            await journey.travel()
        assert (journey.response.stop, journey.response.spent) == ("budget", "seconds")
        assert scene.deeds.running == 0
        check_history([USER, *journey.response.messages])
        await until(lambda: scene.server.open_now == 0)

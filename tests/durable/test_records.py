"""What is recorded of a run, with a database that answers when a test lets it."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest
from concurrent_calls import Plan, check, plans
from hypothesis import example, given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm
from aswarm._journal.agent_lookup import AgentLookup
from aswarm.durable._middleware import durable_middleware
from aswarm.middleware import Handlers
from aswarm.testing import ScriptedModel, call


class Steps:
    """In place of the steps of the engine: a database that answers in any order."""

    is_over = False

    def __init__(self, recorded: dict[int, str], rng: random.Random) -> None:
        self.recorded = recorded
        self.made = dict(recorded)
        self.rng = rng
        self.last = 0

    def reserve(self) -> int:
        self.last += 1
        return self.last

    def is_recorded(self, place: int) -> bool:
        return place in self.recorded

    def output(self, place: int) -> str:
        return self.recorded[place]

    def see(self, place: int) -> None:
        pass

    async def require_open(self) -> None:
        pass

    async def record(self, place: int, name: str, data: str = "") -> str:
        for _ in range(self.rng.randrange(4)):
            await anyio.sleep(0)
        return self.made.setdefault(place, data)


@given(plan=plans(), rng=st.randoms(use_true_random=False))
@example(plan=Plan([1, 0], frozenset()), rng=random.Random(0))
@pytest.mark.asyncio
async def test_changes_are_made_again_in_the_order_of_the_ends(plan: Plan, rng: random.Random) -> None:
    """Nothing that a call has written is lost, whichever answer the database gives first; calls without a record come last."""
    attempts: list[Steps] = []

    def durable(handlers: Handlers) -> Handlers:
        lost = {3 + 2 * position for position in plan.lost}  # a completion, and two steps for each call
        recorded = {at: data for steps in attempts for at, data in steps.made.items() if at not in lost}
        steps: Any = Steps(recorded, rng)
        attempts.append(steps)
        return durable_middleware("r", "1", steps, AgentLookup(handlers.run.agent), 0)(handlers)

    await check(plan, durable, durable)


@pytest.mark.parametrize("is_away", [False, True])
@pytest.mark.asyncio
async def test_an_outcome_is_recorded_though_the_run_is_cancelled(
    is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known, so the next process must not call it unknown; a database that is away does not keep the process."""
    monkeypatch.setattr("aswarm.durable._middleware._SECONDS_WHEN_CANCELLED", 0.02 if is_away else 60)
    asked, answer, recorded = anyio.Event(), anyio.Event(), list[str]()

    class Slow(Steps):
        async def record(self, place: int, name: str, data: str = "") -> str:
            if name.startswith("tool:"):
                asked.set()
                await answer.wait()
            recorded.append(name)
            return data

    def durable(handlers: Handlers) -> Handlers:
        steps: Any = Slow({}, random.Random())
        return durable_middleware("r", "1", steps, AgentLookup(handlers.run.agent), 0)(handlers)

    def pay() -> str:
        """Pay."""
        return "paid"

    async def run() -> None:
        async with AsyncSwarm(ScriptedModel([call("pay", call_id="p")]).client(), middleware=[durable]) as swarm:
            await swarm.run(Agent(name="A", functions=[pay]), "Go!")

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await asked.wait()
            group.cancel_scope.cancel()
            for _ in range(10):
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0)
            if not is_away:
                answer.set()
    assert recorded == ["completion:1", "started:p", *([] if is_away else ["tool:p"])]

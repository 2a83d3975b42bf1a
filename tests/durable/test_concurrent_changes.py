"""Calls that run together change the same context variables, and a replay makes their changes again."""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest
from concurrent_calls import Plan, check, plans
from hypothesis import example, given
from hypothesis import strategies as st

from aswarm._journal.agent_lookup import AgentLookup
from aswarm.durable._middleware import durable_middleware
from aswarm.middleware import Handlers


class Steps:
    """In place of the steps of the engine: a database that answers in any order."""

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

"""Concurrent calls that change the same context variables: starts and ends in any order, and a replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, tool
from aswarm.middleware import Middleware
from aswarm.testing import ScriptedModel, call

Json = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """A plan. `ends`: the calls of the turn in the order of their ends. `lost`: the calls without a recorded outcome."""

    ends: list[int]
    lost: frozenset[int]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw two to four calls."""
    ends = draw(st.permutations(range(draw(st.integers(2, 4)))))
    return Plan(ends, draw(st.frozensets(st.sampled_from(ends), max_size=2)))


async def context_after(plan: Plan, order: list[int], middleware: Middleware) -> Json:
    """Run the turn. The functions of the calls in `order` must run, and end in this order."""
    ended: list[int] = []

    async def write(number: int, context_variables: Json) -> str:
        """Write to variables that the other calls write to."""
        context_variables.setdefault("began", []).append(number)
        while order[len(ended)] != number:
            await anyio.sleep(0)
        context_variables.setdefault("ended", []).append(number)
        context_variables.setdefault("by", {})[str(number)] = len(ended)
        context_variables["even"] = number % 2 == 0  # a value may occur twice
        context_variables["odd"] = True
        if number % 2 == 0:
            del context_variables["odd"]
        ended.append(number)
        return f"wrote {number}"

    agent = Agent(name="A", functions=[tool(write, concurrent=True, repeatable=True)])
    script = [[call("write", call_id=f"c{n}", number=n) for n in range(len(plan.ends))], "Done."]
    async with AsyncSwarm(ScriptedModel(script).client(), middleware=[middleware]) as swarm:
        with anyio.fail_after(60):
            response = await swarm.run(agent, "Go!", run_id="r")
    assert ended == order
    assert [each["content"] for each in response.messages[1:-1]] == [f"wrote {n}" for n in range(len(plan.ends))]
    return response.context_variables


async def check(plan: Plan, first: Middleware, second: Middleware) -> None:
    """Run the turn twice: the second run has the same result, and the calls in `lost` run after the others."""
    before = await context_after(plan, plan.ends, first)
    lost = [number for number in plan.ends if number in plan.lost]
    again = await context_after(plan, lost, second)
    if not lost:
        assert again == before
        return
    assert [number for number in again["ended"] if number not in lost] == [n for n in plan.ends if n not in lost]
    assert again["ended"][-len(lost) :] == lost
    assert set(again["by"]) == set(before["by"])
    assert again["even"] == (lost[-1] % 2 == 0)

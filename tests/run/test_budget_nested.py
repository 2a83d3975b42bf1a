"""Budgets of runs inside tools: an inner run shares the limits of its outer run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Budget, Response, Swarm, agent_tool
from aswarm.testing import ScriptedModel, call
from tests.support.run.budget_shop import Shop, looks
from tests.support.run.one_turn import contents


class Nested:
    """An agent whose function runs another agent. `ran`: the calls of that agent."""

    def __init__(self, *steps: Any, inner: Budget | None = None, **options: Any) -> None:
        self.ran: list[int] = []
        self.inner: list[Response] = []

        async def look(at: int) -> str:
            self.ran.append(at)
            return f"seen {at}"

        async def ask() -> str:
            agent = Agent(name="inner", functions=[look])
            self.inner.append(await self.swarm.run(agent, "Look", budget=inner))
            return self.inner[-1].text or f"stopped: {self.inner[-1].spent}"

        self.model = ScriptedModel(steps)
        self.swarm = AsyncSwarm(self.model.client(), **options)
        self.agent = Agent(name="outer", functions=[ask])


@pytest.mark.parametrize(
    ("budget", "spent"),
    [
        (Budget(tool_calls=2), "tool_calls"),
        (Budget(turns=2), "turns"),
        (Budget(tokens=30), "tokens"),
        (Budget(cost=0.00003, prices={"gpt-6-luna": (1.0, 1.0)}), "cost"),
    ],
)
async def test_a_run_inside_a_tool_shares_the_budget(budget: Budget, spent: str) -> None:
    """The inner run stops at the limit of the outer run, and only the outer run has a last completion."""
    nested = Nested(call("ask"), looks(1, 2), "Outer answers.")
    response = await nested.swarm.run(nested.agent, "Go", budget=replace(budget, then="answer"))
    assert (nested.inner[0].stop, nested.inner[0].spent) == ("budget", spent)
    assert contents(response) == [f"stopped: {spent}"]
    assert (response.stop, response.spent, response.text) == ("budget", spent, "Outer answers.")


@pytest.mark.parametrize(
    "inner", [Budget(then="answer"), Budget(turns=1, then="answer"), Budget(turns=1, then="raise")], ids=str
)
async def test_the_limit_of_the_outer_run_comes_first(inner: Budget) -> None:
    """An inner run that reaches its own limit together with the outer limit only stops."""
    nested = Nested(call("ask"), looks(1), inner=inner)
    response = await nested.swarm.run(nested.agent, "Go", budget=Budget(turns=2))
    assert (nested.inner[0].stop, nested.inner[0].spent, response.spent) == ("budget", "turns", "turns")
    assert len(nested.model.requests) == 2


async def test_the_budget_of_the_swarm_holds_for_each_run_and_over_all() -> None:
    """The inner run has the default budget of the swarm too, and shares the budget of the outer run."""
    nested = Nested(call("ask"), looks(1, 2, 3), "Never.", budget=Budget(tool_calls=3))
    response = await nested.swarm.run(nested.agent, "Go")
    assert (sorted(nested.ran), nested.inner[0].spent, response.spent) == ([1, 2], "tool_calls", "tool_calls")


async def test_an_agent_as_a_tool_shares_the_budget() -> None:
    """The outer model reads the reason of the missing answer, and its last completion follows."""
    shop = Shop(call("inner", request="Look"), looks(1, 2), "Outer answers.")
    outer = Agent(name="outer", functions=[agent_tool(Agent(name="inner", functions=shop.agent.functions))])
    response = await shop.swarm.run(outer, "Go", budget=Budget(tool_calls=2, then="answer"))
    (text,) = contents(response)
    assert text.startswith(
        "The agent inner stopped without an answer: the budget is used up. Before, its functions had the results: "
    )
    assert text.endswith("look: seen 1; look: not run: the budget of 2 tool calls is used up")
    assert (shop.ran, response.text, response.usage.requests) == ([1], "Outer answers.", 3)


async def test_two_inner_runs_may_make_the_same_call() -> None:
    """A new inner run counts from 0, and its own limit holds if it is lower."""
    steps = [call("inner", request="x"), looks(1), "One.", call("inner", request="y"), looks(1), "Two.", "Outer."]
    shop = Shop(*steps)
    agent = Agent(functions=[agent_tool(Agent(name="inner", functions=shop.agent.functions))])
    assert (await shop.swarm.run(agent, "Go", budget=Budget(repeats=1))).text == "Outer."
    assert shop.ran == [1, 1]
    nested = Nested(call("ask"), looks(1), looks(1), looks(1), "Outer.", inner=Budget(repeats=1))
    await nested.swarm.run(nested.agent, "Go", budget=Budget(repeats=9))
    assert (nested.ran, nested.inner[0].spent) == ([1], "repeats")


async def test_a_blocking_run_in_a_thread_counts_too() -> None:
    """A run of `Swarm` inside a plain function counts for the outer run."""
    inner = ScriptedModel(["Inner."])

    def ask() -> str:
        return Swarm(inner.client()).run(Agent(), "Hi").text

    shop = Shop(call("ask"), "Outer.")
    shop.agent.functions.append(ask)
    assert (await shop.run(Budget(turns=9))).usage.requests == 3


async def test_a_run_that_starts_after_the_call_has_its_own_budget() -> None:
    """A task that a function starts, and that outlives its call, is no part of the run."""
    shop = Shop(call("start"), "Done.", "Later.")
    responses: list[Response] = []
    may_run = anyio.Event()

    async def work() -> None:
        await may_run.wait()
        responses.append(await shop.swarm.run(Agent(), "Hi"))

    async def start() -> str:
        group.start_soon(work)
        return "started"

    shop.agent.functions.append(start)
    async with anyio.create_task_group() as group:
        response = await shop.run(Budget(turns=2))
        may_run.set()
    assert (responses[0].text, response.usage.requests) == ("Later.", 2)

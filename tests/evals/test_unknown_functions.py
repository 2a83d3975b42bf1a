"""A case that names a function which no agent has: it is said before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest
from evaluated import swarm_that

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.evals import Case, evaluate
from aswarm.testing import ScriptedModel

pytestmark = pytest.mark.anyio


def book() -> str:
    """Book a room."""
    return "booked"


def refund() -> str:
    """Refund it."""
    return "refunded"


refunds = Agent(name="Refunds", functions=[refund])
desk = Agent(name="Desk", functions=[book, refunds])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("bok", "the case 'Hi' expects 'bok', a function that no agent has; did you mean 'book'?"),
        (["book", "pay"], "'pay', a function that no agent has; the functions are: book, transfer_to_refunds, refund"),
    ],
)
async def test_a_name_that_no_agent_has(function: Any, said: str) -> None:
    """The name and the nearest one, or all names, are in the error; no request is made."""
    model = ScriptedModel([])
    with pytest.raises(ConfigurationError) as caught:
        await evaluate(desk, [Case("Hi", function=function)], swarm=AsyncSwarm(model.client()))
    assert said in str(caught.value)
    assert not model.requests


async def test_an_agent_without_functions() -> None:
    """The error says so."""
    with pytest.raises(ConfigurationError, match="the functions are: none"):
        await evaluate(Agent(), [Case("Hi", function="book")], swarm=AsyncSwarm(ScriptedModel([]).client()))


def unsure(name: str) -> Agent:
    """An agent that cannot be found without calling this."""
    return Agent(name=name)


@pytest.mark.parametrize(
    ("agent", "function"),
    [
        (desk, "refund"),
        (desk, "transfer_to_refunds"),
        (desk, ["book", "book"]),
        (Agent(functions=[unsure]), "book"),
        (Agent(model_settings={"tools": [{"type": "function", "function": {"name": "search"}}]}), "search"),
    ],
)
async def test_a_name_that_an_agent_has_or_may_have(agent: Agent, function: Any) -> None:
    """Known are all agents that can be reached; where more may come, every name is taken."""
    report = await evaluate(agent, [Case("Hi", function=function)], swarm=swarm_that({"Hi": "Hello"}))
    assert (report.total, report.passed) == (1, 0)

"""A case with a function that no agent has: a warning and every failed attempt have a hint."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.evals import Case, evaluate
from aswarm.testing import ScriptedModel, call
from tests.support.evals.evaluated import swarm_that


def book() -> str:
    """Book a room."""
    return "booked"


def refund() -> str:
    """Refund it."""
    return "refunded"


refunds = Agent(name="Refunds", functions=[refund])
desk = Agent(name="Desk", functions=[book, refunds])


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        ("bok", "aswarm.graph finds no agent with the function 'bok'; did you mean 'book'?"),
        (
            ["book", "pay"],
            "aswarm.graph finds no agent with the function 'pay'; the functions are: book, transfer_to_refunds, refund",
        ),
    ],
)
async def test_a_name_that_no_agent_has(function: Any, hint: str, caplog: pytest.LogCaptureFixture) -> None:
    """There is one warning for all cases and attempts, and the reason of every failed attempt has the hint."""
    cases = [Case(text, function=function) for text in ("Hi", "Hello")]
    report = await evaluate(desk, cases, repeats=2, swarm=swarm_that({"H": "Hello"}))
    name = function if isinstance(function, str) else function[-1]
    [record] = caplog.records
    assert (record.name, record.levelname) == ("aswarm", "WARNING")
    assert record.getMessage() == f"the case 'Hi' expects {name!r}; {hint}"
    reasons = [attempt.reason for case in report.cases for attempt in case.attempts]
    assert len(reasons) == 4
    assert all(reason.startswith("expected ") and reason.endswith(f" ({hint})") for reason in reasons)


async def test_a_handoff_that_cannot_be_seen(caplog: pytest.LogCaptureFixture) -> None:
    """The case passes, because the run finds the function that the graph does not find."""

    def route(name):  # type: ignore[no-untyped-def]
        return vars(sys.modules[__name__]).get(name)

    model = ScriptedModel([call("route", name="refunds"), call("refund"), "Done."])
    case = Case("Hi", function="refund", run="whole")
    report = await evaluate(Agent(functions=[route]), [case], swarm=AsyncSwarm(model.client()))
    assert (report.total, report.passed) == (1, 1)
    assert "expects 'refund'" in caplog.text


def odd(a: str, /) -> None:
    """A function that cannot be offered."""


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
        (Agent(functions=[book, Agent(name="Broken", functions=[odd])]), "bok"),
        (Agent(model_settings={"tools": [{"type": "function", "function": {"name": "search"}}]}), "search"),
    ],
)
async def test_a_name_that_an_agent_has_or_may_have(
    agent: Agent, function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no warning if an agent that can be reached has the function, or may have it."""
    report = await evaluate(agent, [Case("Hi", function=function)], swarm=swarm_that({"Hi": "Hello"}))
    assert (report.total, report.passed) == (1, 0)
    assert not caplog.records
    assert "aswarm.graph" not in str(report)

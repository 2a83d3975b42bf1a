"""A case that names a function which no agent has: a warning says it, and so does every failed attempt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm
from aswarm.evals import Case, evaluate
from aswarm.evals._names import FunctionNames
from aswarm.testing import ScriptedModel, call
from tests.support.evals.evaluated import swarm_that

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
        ("bok", "aswarm.graph finds no agent with the function 'bok'; did you mean 'book'?"),
        (
            ["book", "pay"],
            "aswarm.graph finds no agent with the function 'pay'; the functions are: book, transfer_to_refunds, refund",
        ),
    ],
)
async def test_a_name_that_no_agent_has(function: Any, said: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is one warning however many cases and attempts there are; the reason of every failed attempt has the hint."""
    cases = [Case(text, function=function) for text in ("Hi", "Hello")]
    report = await evaluate(desk, cases, repeats=2, swarm=swarm_that({"H": "Hello"}))
    name = function if isinstance(function, str) else function[-1]
    [record] = caplog.records
    assert (record.name, record.levelname) == ("aswarm", "WARNING")
    assert record.getMessage() == f"the case 'Hi' expects {name!r}; {said}"
    reasons = [attempt.reason for case in report.cases for attempt in case.attempts]
    assert len(reasons) == 4
    assert all(reason.startswith("expected ") and reason.endswith(f" ({said})") for reason in reasons)


async def test_an_agent_without_functions(caplog: pytest.LogCaptureFixture) -> None:
    """The warning says so."""
    await evaluate(Agent(), [Case("Hi", function="book")], swarm=swarm_that({"Hi": "Hello"}))
    assert caplog.text.rstrip().endswith("the functions are: none")


async def test_a_handoff_that_cannot_be_seen(caplog: pytest.LogCaptureFixture) -> None:
    """The case runs and passes: the function is found by the run, although the graph does not find its agent."""

    def route(name):  # type: ignore[no-untyped-def]
        return vars(sys.modules[__name__]).get(name)

    model = ScriptedModel([call("route", name="refunds"), call("refund"), "Done."])
    case = Case("Hi", function="refund", run="whole")
    report = await evaluate(Agent(functions=[route]), [case], swarm=AsyncSwarm(model.client()))
    assert (report.total, report.passed) == (1, 1)
    assert "expects 'refund'" in caplog.text


async def test_an_agent_is_inspected_once() -> None:
    """However many cases name functions: the time that the cases take does not grow with the size of the graph."""

    class Counting(list[Any]):
        reads = 0

        def __iter__(self) -> Iterator[Any]:
            self.reads += 1
            return super().__iter__()

    async def reads(count: int) -> int:
        agent = Agent(functions=[book])
        agent.functions = functions = Counting([book])
        names = FunctionNames()
        for number in range(count):
            names.hint(Case(f"Hi {number}", function="book"), agent)
        return functions.reads

    assert await reads(1) == await reads(5) > 0


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
    """Known are all agents that can be reached; where more may come, there is no warning."""
    report = await evaluate(agent, [Case("Hi", function=function)], swarm=swarm_that({"Hi": "Hello"}))
    assert (report.total, report.passed) == (1, 0)
    assert not caplog.records
    assert "aswarm.graph" not in str(report)

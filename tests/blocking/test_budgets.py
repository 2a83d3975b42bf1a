"""Budgets of `Swarm`: in each way to run, as a default, and with functions that run in the caller's thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from aswarm import Agent, Budget, BudgetError, Response, Swarm
from aswarm.testing import ScriptedModel, call, check_history

WAYS = ("run", "run(stream=True)", "run_and_stream", "stream")


def run(swarm: Swarm, agent: Agent, way: str, **options: Any) -> Response:
    """One run, read to its end."""
    if way == "run":
        return swarm.run(agent, "Go", **options)
    if way == "stream":
        with swarm.stream(agent, "Go", **options) as run:
            for _ in run:
                pass
        return run.response
    made: Any = swarm.run(agent, "Go", stream=True, **options) if way != "run_and_stream" else None
    made = made or swarm.run_and_stream(agent, "Go", **options)
    *_, last = made
    response: Response = last["response"]
    return response


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("default", [True, False])
def test_the_first_calls_run_and_the_others_are_told(way: str, default: bool) -> None:
    """As with AsyncSwarm; the functions run in the caller's thread."""
    threads: list[int] = []

    def look() -> str:
        threads.append(threading.get_ident())
        return "seen"

    budget = Budget(tool_calls=1)
    model = ScriptedModel([[call("look"), call("look")]])
    swarm = Swarm(model.client(), **({"budget": budget} if default else {}))  # type: ignore[arg-type]
    response = run(swarm, Agent(functions=[look]), way, **({} if default else {"budget": budget}))
    assert threads == [threading.get_ident()]
    assert (response.stop, response.spent) == ("budget", "tool_calls")
    check_history([{"role": "user", "content": "Go"}, *response.messages])


def test_a_run_inside_a_function_shares_the_budget() -> None:
    """Also where both are runs of a `Swarm`."""
    inner: list[Response] = []

    def look() -> str:
        return "seen"

    def ask() -> str:
        inner.append(swarm.run(Agent(functions=[look]), "Look"))
        return inner[0].text or "nothing"

    swarm = Swarm(ScriptedModel([call("ask"), [call("look"), call("look")], "Outer."]).client())
    response = swarm.run(Agent(functions=[ask]), "Go", budget=Budget(tool_calls=2, then="answer"))
    assert (inner[0].spent, response.text, response.usage.requests) == ("tool_calls", "Outer.", 3)


def test_then_raise() -> None:
    """The error has the partial response."""
    swarm = Swarm(ScriptedModel([call("look")]).client())
    with pytest.raises(BudgetError) as caught:
        swarm.run(Agent(functions=[]), "Go", budget=Budget(turns=1, then="raise"))
    assert caught.value.response is not None
    assert caught.value.response.spent == "turns"

"""Calls that wait keep the order of the calls; `test_declared_holds.py` has the property."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Hold, tool
from aswarm.guards import CheckedCall, guard_tool
from aswarm.middleware import Handlers, Started, ToolCall, ToolOutcome, clip_results
from aswarm.testing import ScriptedModel, call


@pytest.mark.parametrize("concurrent", [True, False])
async def test_calls_of_one_id_and_name(concurrent: bool) -> None:
    """A later call with the same id runs after the call that waits, because its answer would close the earlier call."""

    @tool(approve=lambda arguments, _: arguments["amount"] > 100)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    calls = [call("pay", call_id="same", amount=500), call("pay", call_id="same", amount=5)]
    agent = Agent(name="A", functions=[pay])
    swarm = AsyncSwarm(ScriptedModel([calls, "Done."]).client(), concurrent_tools=concurrent)
    response = await swarm.run(agent, "Go")
    assert [each.reason for each in response.open_calls] == ["needs approval", None]
    history = [{"role": "user", "content": "Go"}, *response.messages]
    response = await swarm.run(agent, history, resume={0: True, 1: True})
    assert [each["content"] for each in response.messages] == ["paid 500", "paid 5", "Done."]


def holds_by_name(handlers: Handlers) -> Handlers:
    async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        if call.name == "looks" and not call.is_approved:
            raise Hold("May it look?")
        return await handlers.call_tool(call, context, started)

    return replace(handlers, call_tool=call_tool, may_hold=True)


def forgets_the_declaration(handlers: Handlers) -> Handlers:
    return Handlers(handlers.complete, handlers.call_tool, handlers.run)


def held(checked: CheckedCall) -> Hold | None:
    return Hold("May it look?") if checked.name == "looks" and not checked.is_approved else None


@pytest.mark.parametrize("concurrent", [True, False])
@pytest.mark.parametrize(
    "middleware",
    [
        [holds_by_name],
        [holds_by_name, lambda handlers: handlers],
        [forgets_the_declaration, holds_by_name],
        [guard_tool(held, may_wait=True)],
        [clip_results(100), guard_tool(held, may_wait=True)],
    ],
)
async def test_a_middleware_that_makes_a_call_wait(middleware: list[Any], concurrent: bool) -> None:
    """A later handoff does not close the call before the user is asked."""

    async def looks() -> str:
        return "looked"

    async def leaves() -> Agent:
        return Agent(name="Other")

    model = ScriptedModel([[call("looks"), call("leaves")], "Done."])
    swarm = AsyncSwarm(model.client(), middleware=middleware, concurrent_tools=concurrent)
    response = await swarm.run(Agent(name="A", functions=[looks, leaves]), "Go")
    assert response.stop == "waiting"
    assert [each.reason for each in response.open_calls] == ["May it look?", None]

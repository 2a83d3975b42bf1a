"""The current tool call in a middleware, and runs that a middleware starts around a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Budget, agent_tool, current_call
from aswarm.middleware import Handlers, Middleware, Started, ToolCall, ToolOutcome
from aswarm.testing import Request, ScriptedModel, call

pytestmark = pytest.mark.anyio
HELPER = Agent(name="Helper", instructions="Help.")


async def look() -> str:
    """Look."""
    return current_call().key


def answer(request: Request) -> Any:
    """Call `look` or `asks` once, and answer everything else."""
    text = request.messages[-1]["content"]
    return {"Go": [call("look")], "Ask": [call("asks", request="Go")]}.get(text, "Done.")


def swarm_with(middleware: Middleware) -> AsyncSwarm:
    return AsyncSwarm(ScriptedModel(answer).client(), middleware=[middleware])


async def test_a_middleware_sees_the_call_around_its_function() -> None:
    """Before the function, the key is empty; after it, the key is the key of the function."""
    seen: list[tuple[str, str, int, str]] = []

    def watching(handlers: Handlers) -> Handlers:
        async def call_tool(made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            for turn in ("before", "after"):
                now = current_call()
                seen.append((turn, now.name, now.index, now.key))
                if turn == "before":
                    outcome = await handlers.call_tool(made, context, started)
            return outcome

        return replace(handlers, call_tool=call_tool)

    swarm = swarm_with(watching)
    response = await swarm.run(Agent(functions=[look]), "Go", run_id="r1")
    assert seen == [("before", "look", 0, ""), ("after", "look", 0, "r1:1:0")]
    assert response.messages[1]["content"] == "r1:1:0"


def helping(when: str, swarms: list[AsyncSwarm], calls: list[str | None]) -> Middleware:
    """Return a middleware that runs the helper before or after the function `look`."""

    def wrap(handlers: Handlers) -> Handlers:
        if handlers.run.agent.name == "Helper":
            calls.append(handlers.run.tool_call and handlers.run.tool_call.name)
            return handlers

        async def call_tool(made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            if made.name != "look":
                return await handlers.call_tool(made, context, started)
            if when == "before":
                await swarms[0].run(HELPER, "Help me")
            outcome = await handlers.call_tool(made, context, started)
            if when == "after":
                await swarms[0].run(HELPER, "Help me")
            return outcome

        return replace(handlers, call_tool=call_tool)

    return wrap


@pytest.mark.parametrize(("when", "turns"), [("before", 2), ("after", 3)])
async def test_a_run_of_a_middleware_is_charged_once_the_function_has_run(when: str, turns: int) -> None:
    """Before the function, the run of the middleware is a run of its own; after it, it is an inner run of the call."""
    swarms: list[AsyncSwarm] = []
    calls: list[str | None] = []
    swarm = swarm_with(helping(when, swarms, calls))
    swarms.append(swarm)
    response = await swarm.run(Agent(functions=[look]), "Go", budget=Budget(turns=9))
    assert response.usage.requests == turns
    assert calls == ["look"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_run_of_a_middleware_in_an_inner_run_is_charged_to_the_outer_run(when: str) -> None:
    """The run around the call of the inner run is charged in both cases."""
    swarms: list[AsyncSwarm] = []
    calls: list[str | None] = []
    swarm = swarm_with(helping(when, swarms, calls))
    swarms.append(swarm)
    asks = agent_tool(Agent(name="Inner", functions=[look]), name="asks")
    response = await swarm.run(Agent(functions=[asks]), "Ask", budget=Budget(turns=9))
    assert response.usage.requests == 5
    assert calls == ["look"]

"""A tool call as a middleware sees it: its facts, the current call, and runs that a middleware starts around the call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Budget, ConfigurationError, Hold, agent_tool, current_call, tool
from aswarm.conversations import Conversation, MemoryStore
from aswarm.guards import Blocked, CheckedCall, Halt, Replace, guard_tool
from aswarm.middleware import Handlers, Middleware, Started, ToolCall, ToolOutcome
from aswarm.testing import Request, ScriptedModel, call
from aswarm.tools import ToolFailure

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


# --- a wrong order of events ------------------------------------------------------------------------------------------


def middleware(call_tool: Callable[[Handlers, ToolCall, dict[str, Any], Started], Awaitable[Any]]) -> Middleware:
    return lambda handlers: replace(handlers, may_hold=True, call_tool=partial(call_tool, handlers))


async def again(handlers: Handlers, made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
    """Repeat a call that has failed, or that a guard has ended."""
    try:
        outcome = await handlers.call_tool(made, context, started)
    except (Blocked, ValueError):
        return await handlers.call_tool(made, context, started)
    return await handlers.call_tool(made, context, started) if outcome.error else outcome


async def test_arguments_cannot_be_set_after_the_start() -> None:
    """The error names the remedy, and the history has the result of the call."""

    async def late(handlers: Handlers, made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        assert (made.progress, made.has_started, made.outcome) == ("planned", False, None)
        outcome = await handlers.call_tool(made, context, started)
        assert (made.progress, made.has_started) == ("started", True)
        made.arguments = '{"late": true}'
        return outcome

    with pytest.raises(ConfigurationError, match="set them before the inner call_tool is called") as caught:
        await swarm_with(middleware(late)).run(Agent(functions=[look]), "Go", run_id="r1")
    assert caught.value.response is not None
    assert caught.value.response.messages[-1]["content"] == "r1:1:0"


async def test_a_repeated_call_passes_the_same_middleware_and_guards_again() -> None:
    """A middleware that sets the same arguments, and a guard that replaces them, may see a call twice."""
    cities: list[str] = []

    async def visit(city: str) -> str:
        """Fail once."""
        cities.append(city)
        if len(cities) == 1:
            raise ValueError("no")
        return city

    async def setting(handlers: Handlers, made: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        made.arguments = '{"city": "Oslo"}'
        return await handlers.call_tool(made, context, started)

    guard = guard_tool(lambda checked: Replace({"city": f"{checked.arguments['city']}!"}))
    model = ScriptedModel([call("visit", city="Rome"), "Done."])
    swarm = AsyncSwarm(model.client(), middleware=[middleware(again), middleware(setting), guard])
    response = await swarm.run(Agent(functions=[visit]), "Go")
    assert cities == ["Oslo!", "Oslo!"]
    assert response.messages[1]["content"] == "Oslo!"


async def test_a_call_that_a_guard_has_ended_may_be_repeated_and_wait() -> None:
    """The second execution needs an approval; the outcome of the first is dropped."""
    judged: list[str] = []

    @tool(approve=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    def once(checked: CheckedCall) -> Halt | None:
        judged.append(checked.name)
        return Halt("once") if len(judged) == 1 else None

    swarm = AsyncSwarm(ScriptedModel([call("pay")]).client(), middleware=[middleware(again), guard_tool(once)])
    response = await swarm.run(Agent(functions=[pay]), "Go")
    assert [each.name for each in response.open_calls] == ["pay"]


async def test_a_repeated_call_that_is_cancelled_has_an_unknown_outcome() -> None:
    """The outcome of its first execution is not the outcome of the second."""
    times: list[int] = []
    scope = anyio.CancelScope()

    async def flaky() -> str:
        """Fail, then wait."""
        times.append(len(times))
        if len(times) == 1:
            raise ValueError("no")
        scope.cancel()
        await anyio.sleep_forever()
        return "never"

    def raising(failure: ToolFailure) -> str:
        raise failure.error

    model = ScriptedModel([call("flaky")])
    swarm = AsyncSwarm(model.client(), middleware=[middleware(again)], tool_error=raising)
    with scope:
        async with swarm.stream(Agent(functions=[flaky]), "Go") as run:
            async for _ in run:
                pass
    assert run.response.messages[-1]["content"] == "cancelled; its outcome is unknown"
    assert [each.name for each in run.response.unknown_calls] == ["flaky"]


async def test_a_repeated_call_whose_second_execution_asks_waits() -> None:
    """The middleware has decided that the function may run again, and the question comes before an effect."""
    times: list[int] = []

    @tool(may_wait=True)
    async def pay() -> str:
        """Fail, then ask."""
        times.append(len(times))
        if len(times) == 1:
            raise ValueError("no")
        raise Hold("May it?")

    swarm = AsyncSwarm(ScriptedModel([call("pay")]).client(), middleware=[middleware(again)])
    response = await swarm.run(Agent(functions=[pay]), "Go")
    assert [each.reason for each in response.open_calls] == ["May it?"]
    assert response.unknown_calls == []


async def test_an_answer_that_is_no_outcome_is_a_mistake_also_in_a_conversation() -> None:
    """`test_tool_calls` has the error of a run that no conversation saves."""

    async def wrong(handlers: Handlers, made: ToolCall, context: dict[str, Any], started: Started) -> Any:
        await handlers.call_tool(made, context, started)
        return "found"

    chat = Conversation(MemoryStore(), "c1", swarm_with(middleware(wrong)), agent=Agent(functions=[look]))
    with pytest.raises(ConfigurationError, match="its call_tool must return a ToolOutcome"):
        await chat.run("Go")

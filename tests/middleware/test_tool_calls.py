"""Tool calls in middleware: other arguments, an answer in place of the function, a handoff, and the results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from aswarm import (
    Agent,
    AsyncSwarm,
    ConfigurationError,
    Event,
    HandedOff,
    Response,
    Result,
    ToolCallFinished,
    ToolCallStarted,
    ToolError,
    tool,
)
from aswarm.errors import ToolArgumentsError
from aswarm.middleware import Started, ToolCall, ToolHandler, ToolOutcome
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.middleware.middlewares import HandleCall, around_calls
from tests.support.run.one_turn import contents
from tests.support.run.ways_to_run import FACES, consume


async def events_of(handle: HandleCall, agent: Agent, *steps: Any, **options: Any) -> tuple[Response, list[Event]]:
    """Run with this handler around each call. Return the response and the events."""
    model = ScriptedModel(steps)
    async with AsyncSwarm(model.client(), middleware=[around_calls(handle)]).stream(agent, "Hi", **options) as run:
        events = [event async for event in run]
    for messages in (run.response.messages, *(request.messages for request in model.requests)):
        check_history(messages)
    return run.response, events


def of_kind(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def look(city: str) -> str:
    """Look."""
    return f"{city} is sunny"


async def look_too(city: str) -> str:
    """Look."""
    return f"{city} is sunny"


async def in_bergen(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
    call.arguments = json.dumps({"city": "Bergen"})
    return await inner(call, context, started)


@pytest.mark.parametrize("function", [look, look_too, tool(thread=False)(look)], ids=["thread", "async", "on the loop"])
async def test_the_function_gets_the_arguments_of_a_middleware(function: Any) -> None:
    """The function and its `ToolCallStarted` get them; the history and the next request keep the model's arguments."""
    name = function.__name__
    model = ScriptedModel([call(name, city="Oslo"), "Done."])
    agent = Agent(functions=[function])
    async with AsyncSwarm(model.client(), middleware=[around_calls(in_bergen)]).stream(agent, "Hi") as run:
        events = [event async for event in run]
    assert contents(run.response) == ["Bergen is sunny"]
    for message in (run.response.messages[0], model.requests[1].messages[2]):
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Oslo"}
    assert [json.loads(event.arguments) for event in of_kind(events, ToolCallStarted)] == [{"city": "Bergen"}]


async def test_a_tool_error_hook_gets_the_arguments_of_a_middleware() -> None:
    """`ToolFailure.arguments` are the arguments of the function."""
    seen: list[str] = []

    def fail(city: str) -> str:
        raise ToolError("No.")

    model = ScriptedModel([call("fail", city="Oslo"), "Done."])
    swarm = AsyncSwarm(
        model.client(),
        middleware=[around_calls(in_bergen)],
        tool_error=lambda failure: seen.append(failure.arguments) or "hidden",  # type: ignore[func-returns-value]
    )
    assert contents(await swarm.run(Agent(functions=[fail]), "Hi")) == ["hidden"]
    assert [json.loads(arguments) for arguments in seen] == [{"city": "Bergen"}]


async def test_arguments_of_a_middleware_are_checked_like_any() -> None:
    """The model reads the error of arguments that do not fit the function."""

    async def wrong(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        call.arguments = "{}"
        return await inner(call, context, started)

    response, events = await events_of(wrong, Agent(functions=[look]), call("look", city="Oslo"), "Done.")
    assert contents(response)[0].startswith("Error: city")
    assert isinstance(of_kind(events, ToolCallFinished)[0].error, ToolArgumentsError)
    assert not of_kind(events, ToolCallStarted)


async def test_a_middleware_sees_the_call_as_it_is() -> None:
    """A call has its id, name, position, agent, tool and arguments; an unknown function has no tool."""
    seen: list[tuple[Any, ...]] = []

    async def note(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        seen.append((call.id, call.name, call.index, call.agent.name, call.tool is None, call.arguments, context))
        return await inner(call, context, started)

    steps = [[call("look", city="Oslo", call_id="a"), call("gone", "", call_id="b")], "Done."]
    await events_of(note, Agent(name="A", functions=[look]), *steps, context_variables={"user": 1})
    assert seen == [
        ("a", "look", 0, "A", False, '{"city": "Oslo"}', {"user": 1}),
        ("b", "gone", 1, "A", True, "", {"user": 1}),
    ]


async def refuse(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
    return ToolOutcome("Not allowed.")


async def test_a_call_can_be_answered_without_running_it() -> None:
    """The model reads the text, the function does not run, and no event shows a start."""
    ran: list[str] = []

    def pay(amount: int) -> str:
        ran.append("pay")
        return "paid"

    steps = [[call("pay", amount=1), call("pay", amount=2), call("unknown")], "Done."]
    response, events = await events_of(refuse, Agent(functions=[pay]), *steps)
    assert contents(response) == ["Not allowed."] * 3
    assert ran == []
    assert not of_kind(events, ToolCallStarted)
    assert [(event.content, event.error) for event in of_kind(events, ToolCallFinished)] == [("Not allowed.", None)] * 3
    assert response.text == "Done."


async def test_a_handoff_can_be_answered_in_its_place() -> None:
    """`ToolOutcome(text, Result(...))` hands over and merges the context like a function that returns the `Result`."""
    other = Agent(name="B")

    async def hand_over(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        return ToolOutcome("Over to B.", Result(agent=other, context_variables={"why": "asked"}))

    response, events = await events_of(hand_over, Agent(name="A", functions=[look]), call("look", city="x"), "I am B.")
    assert contents(response) == ["Over to B."]
    assert response.agent is other
    assert response.context_variables == {"why": "asked"}
    assert response.messages[-1]["sender"] == "B"
    assert [event.target for event in of_kind(events, HandedOff)] == [other]


async def test_a_handoff_can_be_kept_from_happening() -> None:
    """A middleware may take the `result` from an outcome, so that the agent stays."""

    async def stay(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        outcome = await inner(call, context, started)
        return replace(outcome, content="You stay.", result=None)

    agent = Agent(name="A", functions=[Agent(name="B")])
    response, events = await events_of(stay, agent, call("transfer_to_b"), "I am A.")
    assert contents(response) == ["You stay."]
    assert response.agent is agent
    assert not of_kind(events, HandedOff)


async def test_an_outcome_can_be_rewritten() -> None:
    """The events and the history show the text and the error of the new outcome."""
    secret = ToolError("told")

    async def hide(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        outcome = await inner(call, context, started)
        return replace(outcome, content=outcome.content.replace("Oslo", "***"), error=secret)

    response, events = await events_of(hide, Agent(functions=[look]), call("look", city="Oslo"), "Done.")
    assert contents(response) == ["*** is sunny"]
    assert of_kind(events, ToolCallFinished)[0].error is secret


async def test_the_calls_of_a_resumed_run_pass_the_middleware() -> None:
    """Open calls that `resume=True` runs pass the middleware like others."""
    swarm = AsyncSwarm(ScriptedModel([call("look", city="Oslo"), "Done."]).client(), middleware=[around_calls(refuse)])
    agent = Agent(functions=[look])
    left = await swarm.run(agent, "Hi", execute_tools=False)
    history = [{"role": "user", "content": "Hi"}, *left.messages]
    assert contents(await swarm.run(agent, history, resume=True)) == ["Not allowed."]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("wrong", [None, "text", Result(value="x"), ToolOutcome(7)], ids=str)  # type: ignore[arg-type]
async def test_another_result_than_an_outcome_is_a_configuration_error(wrong: Any, face: str) -> None:
    """The error names the right result of a handler, and the history is valid."""

    async def forget(inner: ToolHandler, call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
        await inner(call, context, started)
        return wrong

    model = ScriptedModel([[call("look", city="Oslo"), call("look", city="Bergen")], "never asked"])
    swarm = AsyncSwarm(model.client(), middleware=[around_calls(forget)])
    left: list[Response] = []
    with pytest.raises(ConfigurationError, match="must return a ToolOutcome") as caught:
        await consume(swarm, Agent(functions=[look]), face, left)
    assert repr(wrong)[:20] in str(caught.value)
    assert caught.value.response == left[0]
    check_history(left[0].messages, allow_open=True)
    assert contents(left[0]) == ["cancelled; its outcome is unknown"]

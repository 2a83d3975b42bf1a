"""Typed use of the public face: checked by mypy and pyright strict, never run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from anyio import CapacityLimiter
from pydantic import BaseModel

from aswarm import (
    Agent,
    Approve,
    AsyncSwarm,
    CallWaiting,
    CompletionError,
    CompletionFinished,
    Deny,
    Event,
    HandedOff,
    Hold,
    OpenCall,
    Output,
    RateLimits,
    Reply,
    Resource,
    Response,
    Result,
    RunFinished,
    Swarm,
    TextDelta,
    Tool,
    ToolCallFinished,
    ToolCallStarted,
    ToolError,
    Usage,
    current_call,
    external_tool,
    open_calls,
    tool,
)
from aswarm.decisions import AllApproved, Decision
from aswarm.errors import ToolTimeout
from aswarm.events import ReasoningDelta, RefusalDelta, ToolCallDelta, ToolProgress, TurnStarted
from aswarm.testing import ScriptedModel, call, check_history
from aswarm.tools import ToolFailure, function_tool
from aswarm.types import ClassicStream, EventStream, SyncClassicStream, SyncEventStream, UnknownCall
from aswarm.util import function_to_json


def look_up(order: int, context_variables: Mapping[str, Any]) -> str:
    return f"{order} of {context_variables['user']}"


@tool
async def fetch(url: str) -> bytes:
    return url.encode()


@tool(limiter=CapacityLimiter(3), timeout=1.5, concurrent=True)
def slow(seconds: float) -> Result:
    return Result(value=str(seconds))


class Shop:
    @tool
    async def refund(self, order: int) -> bool:
        return order > 0


def hide(failure: ToolFailure) -> str:
    return "It failed." if isinstance(failure.error, ValueError) else failure.text


agent = Agent(name="A", functions=[look_up, fetch, slow, Shop().refund, Agent(name="B")], tool_choice="auto")
swarm = AsyncSwarm(tool_error=hide, rate_limits=RateLimits(requests_per_minute=500, tokens_per_minute=200_000))


async def plain() -> None:
    response = await swarm.run(agent, "Hi", {"user": "Ann"}, max_turns=3)
    assert_type(response, Response)
    assert_type(response.text, str)
    assert_type(response.usage, Usage)
    assert_type(response.agent, Agent)
    assert_type(response.unknown_calls, list[UnknownCall])
    await swarm.run(response.agent, [*response.messages, {"role": "user", "content": "And?"}])
    assert_type(await fetch("x"), bytes)
    assert_type(slow(1), Result)
    assert_type(function_to_json(look_up), dict[str, Any])
    await swarm.run(agent, [{"role": "user", "content": "Hi"}], None, "gpt-6-luna", False, True, 2, True, resume=True)


def with_keywords(plain_swarm: Swarm) -> None:
    assert_type(plain_swarm.run(agent, "Hi", run_id="a", budget=None, resume=True), Response)
    assert_type(plain_swarm.run(agent, "Hi", stream=True, run_id="a", debug=True), SyncClassicStream)
    assert_type(plain_swarm.run(agent, "Hi", run_id="a", output=Trip), Response[Trip])
    assert_type(swarm.run(agent, "Hi", None, stream=True, run_id="a"), ClassicStream)
    swarm.stream(agent, "Hi", runid="a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    swarm.stream(agent, "Hi", run_id=3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    swarm.run(agent, "Hi", runid="a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    plain_swarm.run(agent, "Hi", runid="a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    swarm.batch(agent, [], run_id="a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


class Trip(BaseModel):
    city: str


class Hotel(BaseModel):
    name: str


def has_city(trip: Trip) -> bool:
    return bool(trip.city)


async def with_types(anything: object) -> None:
    response = await swarm.run(agent, "Hi", output=Trip)
    assert_type(response, Response[Trip])
    assert_type(response.output, Trip)
    assert_type((await swarm.run(agent, "Hi", output=list[Trip])).output, list[Trip])
    assert_type((await swarm.run(agent, "Hi", output=Output(Trip, retries=2, check=has_city))).output, Trip)
    assert_type((await swarm.run(agent, "Hi", output=Trip | str)).output, Trip | str)
    assert_type((await swarm.run(Agent(output=Trip), "Hi")).output, Trip)
    assert_type(Swarm().run(agent, "Hi", output=Trip).output, Trip)
    assert_type(Response[Trip](messages=[]).output, Trip)
    async with swarm.stream(agent, "Hi", output=Trip) as run:
        assert_type(run.partial_output, Any)
    assert_type(swarm.run(agent, "Hi", stream=True, output=Trip), ClassicStream)
    take(response)
    if isinstance(anything, Response):
        assert_type(anything.text, str)


def take(response: Response) -> Response:
    return response


async def classic() -> None:
    stream = swarm.run(agent, "Hi", stream=True)
    assert_type(stream, ClassicStream)
    async for event in stream:
        assert_type(event, dict[str, Any])
    async for event in await swarm.run(agent, "Hi", {}, stream=True):
        assert_type(event, dict[str, Any])
    assert_type(stream.response, Response)


async def typed() -> None:
    async with swarm.stream(agent, "Hi") as run:
        assert_type(run, EventStream)
        async for event in run:
            assert_type(event, Event)
            assert_type(event.to_dict(), dict[str, Any])
            show(event)
    assert_type(run.partial, str)


def show(event: Event) -> str:
    """A match over the closed union needs no default."""
    match event:
        case TextDelta(text) | ReasoningDelta(text) | RefusalDelta(text):
            return text
        case TurnStarted(speaker, turn):
            return f"{speaker.name} {turn}"
        case ToolCallDelta(index=index, arguments=arguments):
            return f"{index}: {arguments}"
        case CompletionFinished(message):
            return str(message["content"])
        case ToolCallStarted(name=name):
            return name
        case ToolCallFinished(name=name, content=content):
            return f"{name}: {content}"
        case ToolProgress(name=name, value=value):
            return f"{name}: {value}"
        case CallWaiting(name=name, reason=reason):
            return f"{name}: {reason}"
        case HandedOff(source, target):
            return f"{source.name} to {target.name}"
        case RunFinished(response):
            return response.stop


def blocking() -> None:
    with Swarm(tool_error=hide) as plain_swarm:
        response = plain_swarm.run(agent, "Hi", {"user": "Ann"}, max_turns=3)
        assert_type(response, Response)
        stream = plain_swarm.run(agent, "Hi", stream=True)
        assert_type(stream, SyncClassicStream)
        for event in plain_swarm.run(agent, "Hi", {}, stream=True):
            assert_type(event, dict[str, Any])
        assert_type(plain_swarm.run_and_stream(agent, "Hi"), SyncClassicStream)
        assert_type(stream.response, Response)
        with plain_swarm.stream(agent, "Hi") as run:
            assert_type(run, SyncEventStream)
            for typed_event in run:
                assert_type(typed_event, Event)
                show(typed_event)
        assert_type(run.partial, str)


def chosen(stream: bool) -> Response | SyncClassicStream:
    assert_type(Swarm().run(agent, "Hi", stream=stream), Any)
    response: Response | SyncClassicStream = Swarm().run(agent, "Hi", stream=stream)
    return response


async def errors() -> None:
    try:
        await swarm.run(agent, "Hi")
    except CompletionError as error:
        assert_type(error.status_code, int | None)
        assert_type(error.retryable, bool)
        assert_type(error.response, Response | None)


async def scripted() -> None:
    model = ScriptedModel([call("look_up", order=1), "Done."], cut=2)
    response = await AsyncSwarm(client=model.client()).run(agent, "Hi")
    check_history(response.messages)
    assert_type(model.requests[0].messages, list[dict[str, Any]])


made: Tool[[float], Result] = slow
ready = function_tool(look_up, name="look", description="Looks up an order.", parameters={"type": "object"}, timeout=3)
assert_type(ready(1, {"user": "Ann"}), str)


def still_running(error: ToolError) -> bool:
    return isinstance(error, ToolTimeout) and error.still_running


# --- calls that wait for a decision ---


@tool(approve=lambda arguments, context: "large" if arguments["amount"] > context["limit"] else False)
def pay(amount: int) -> str:
    if current_call().answer is None:
        raise Hold("Which account?", data={"amount": amount})
    return str(current_call().answer)


async def ask_first(arguments: Mapping[str, Any], context: Mapping[str, Any]) -> bool:
    return bool(arguments["amount"] > context["limit"])


@tool(approve=ask_first)
async def pay_later(amount: int) -> str:
    return str(amount)


cashier = Agent(
    functions=[
        pay,
        pay_later,
        external_tool(name="browser", description="Opens a page.", parameters={"type": "object"}),
    ]
)
later: dict[str, Decision] = {"a": True, "b": "told instead"}


async def decided() -> None:
    first = await swarm.run(cashier, "Pay!")
    assert_type(first.open_calls, list[OpenCall])
    assert_type(open_calls(first.messages), list[OpenCall])
    await swarm.run(cashier, first.messages, resume={"a": Approve({"amount": 3}), "b": Deny("no"), "c": Reply(4)})
    await swarm.run(cashier, first.messages, resume=Approve.all())
    assert_type(Approve.all(), AllApproved)
    await swarm.run(cashier, first.messages, resume={0: False, "b": {"answer": 3}})
    await swarm.run(cashier, first.messages, resume=later)
    await swarm.run(cashier, first.messages, resume={each.id: False for each in first.open_calls})
    with Swarm() as plain_swarm:
        plain_swarm.run(cashier, first.messages, resume={"a": True, "b": Deny("no")})
        plain_swarm.run(cashier, first.messages, stream=True, resume={0: Approve(expected={"amount": 3})})
        with plain_swarm.stream(cashier, first.messages, resume=later) as run:
            assert_type(run.response.open_calls, list[OpenCall])


async def is_open(trip: Trip, hotel: Resource[Hotel], context_variables: Mapping[str, object]) -> None: ...


async def with_checks(anything: object) -> None:
    checked = Output(Trip, check=is_open)
    assert_type((await swarm.run(agent, "Hi", output=checked)).output, Trip)
    assert_type((await swarm.run(agent, "Hi", output=Output(Trip, check=lambda trip: trip.city))).output, Trip)

"""The calls of `run`, `stream` and `batch` as type checkers see them: typical calls, and those of OpenAI's Swarm. Never run."""

from __future__ import annotations

from typing import Any, Literal, Unpack, assert_type

from pydantic import BaseModel

from aswarm import Agent, AsyncSwarm, Output, Response, Swarm
from aswarm.batch import Batch, Completed, Failed
from aswarm.conversations import Conversation
from aswarm.types import ClassicStream, EventStream, Messages, RunKeywords, SyncClassicStream, SyncEventStream


class Trip(BaseModel):
    city: str


class Guide(Agent):
    """An agent with another field."""

    language: str = "en"


class TripAgent(Agent[Trip]):
    output: Any = Trip


# --- agents -----------------------------------------------------------------------------------------------------------


def agents() -> list[Agent]:
    """An agent has the type of its answers. `Agent` without a type stands for each of them."""
    planner = Agent(name="Planner", output=Trip)
    assert_type(planner, Agent[Trip])
    assert_type(Agent(output=Output(Trip, retries=2)), Agent[Trip])
    assert_type(Agent(output=list[Trip]), Agent[list[Trip]])
    assert_type(Agent(output=Trip | str), Agent[Trip | str])
    assert_type(Agent(output=Literal["yes", "no"]), Agent[Literal["yes", "no"]])
    assert_type(Agent(name="Desk", functions=[planner]), Agent[Any])
    assert_type(Guide(language="de", output=Trip), Guide)
    Agent(nme="Desk")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    Agent("Desk")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    Agent().run("Hi")  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    Agent(functions=7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    wider: Agent[Trip | str] = planner
    return [planner, Agent(), Guide(), wider]


# --- run --------------------------------------------------------------------------------------------------------------


async def runs(swarm: AsyncSwarm, agent: Agent, planner: Agent[Trip]) -> None:
    assert_type(await swarm.run(agent, "Hi"), Response[Any])
    assert_type(await swarm.run(agent, "Hi", {"user": "Ann"}, max_turns=3, debug=True), Response[Any])
    assert_type(await swarm.run(planner, "Hi"), Response[Trip])
    assert_type((await swarm.run(planner, "Hi", max_turns=None)).output, Trip)
    assert_type((await swarm.run(planner, "Hi", output=int)).output, int)
    assert_type((await swarm.run(agent, "Hi", output=Trip)).output, Trip)
    assert_type((await swarm.run(agent, "Hi", output=Trip | None, run_id="a")).output, Trip | None)
    assert_type((await swarm.run(agent, "Hi", output=Literal[1, 2], stream=False)).output, Literal[1, 2])
    assert_type((await swarm.run(agent, "Hi", output=Output(Trip | str))).output, Trip | str)
    assert_type((await swarm.run(TripAgent(), "Hi")).output, Trip)
    assert_type(swarm.run(agent, "Hi", stream=True), ClassicStream)
    assert_type(swarm.run_and_stream(agent, "Hi", {}, debug=True), ClassicStream)
    swarm.run(agent, "Hi", max_turns=3.5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    swarm.run(agent, "Hi", deltas=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    swarm.run("agent", "Hi")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


def blocking_runs(swarm: Swarm, agent: Agent, planner: Agent[Trip]) -> None:
    assert_type(swarm.run(agent, "Hi"), Response[Any])
    assert_type(swarm.run(planner, "Hi").output, Trip)
    assert_type(swarm.run(agent, "Hi", output=Trip | str, max_turns=3).output, Trip | str)
    assert_type(swarm.run(agent, "Hi", output=Output(Trip)).output, Trip)
    assert_type(swarm.run(agent, "Hi", stream=True, debug=True), SyncClassicStream)
    assert_type(swarm.run_and_stream(agent, "Hi"), SyncClassicStream)
    with swarm.stream(planner, "Hi") as run:
        assert_type(run, SyncEventStream[Trip])
        assert_type(run.response.output, Trip)
    with swarm.stream(agent, "Hi", output=list[int], deltas=False) as other:
        assert_type(other.response.output, list[int])


async def passed_on(swarm: AsyncSwarm, messages: Messages, **keywords: Unpack[RunKeywords]) -> Response[Trip]:
    """A function of a user that passes the keywords on."""
    return await swarm.run(Agent(output=Trip), messages, **keywords)


async def with_keywords(swarm: AsyncSwarm) -> None:
    assert_type(await passed_on(swarm, "Hi", max_turns=3), Response[Trip])
    await passed_on(swarm, "Hi", turns=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# --- calls of programs that were written for OpenAI's Swarm ----------------------------------------------------------


def swarms_calls(client: Swarm, agent: Agent, is_streamed: bool) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert_type(client.run(agent=agent, messages=messages), Response[Any])
    assert_type(client.run(agent=agent, messages=messages, context_variables={}, debug=False), Response[Any])
    assert_type(client.run(agent=agent, messages=messages, stream=True), SyncClassicStream)
    assert_type(client.run(agent, messages, {}, None, False, False, float("inf"), True), Any)
    assert_type(client.run(agent, messages, {}, "gpt-6-luna", True), Any)
    assert_type(client.run(agent=agent, messages=messages, stream=is_streamed), Any)
    assert_type(client.run_and_stream(agent, messages, {}, None, True, float("inf")), SyncClassicStream)


async def swarms_calls_async(swarm: AsyncSwarm, agent: Agent) -> None:
    assert_type(swarm.run(agent, "Hi", {}, None, True), Any)
    response: Response = await swarm.run(agent, "Hi", None, None, False, True, 2, True, resume=True)
    print(response)


# --- stream, batch and conversations ----------------------------------------------------------------------------------


async def streams(swarm: AsyncSwarm, agent: Agent, planner: Agent[Trip]) -> None:
    async with swarm.stream(agent, "Hi", output=Trip, max_turns=3) as run:
        assert_type(run, EventStream[Trip])
        assert_type(run.response, Response[Trip])
    async with swarm.stream(agent, "Hi", output=Trip | str, deltas=False) as either:
        assert_type(either.response.output, Trip | str)
    async with swarm.stream(agent, "Hi", output=Output(Trip)) as checked:
        assert_type(checked.response.output, Trip)
    async with swarm.stream(planner, "Hi") as planned:
        assert_type(planned.response.output, Trip)
    async with swarm.stream(agent, "Hi") as plain:
        assert_type(plain, EventStream[Any])


async def batches(swarm: AsyncSwarm, agent: Agent) -> None:
    async with swarm.batch(agent, ["Hi"], output=Trip, max_turns=None) as outcomes:
        assert_type(outcomes, Batch[Trip])
        async for outcome in outcomes:
            assert_type(outcome, Completed[Trip] | Failed)
            if outcome.error is None:
                assert_type(outcome.response.output, Trip)
    assert_type(swarm.batch(agent, ["Hi"], concurrency=3), Batch[Any])
    assert_type(swarm.batch(agent, ["Hi"], output=Output(Trip)), Batch[Trip])


async def conversations(chat: Conversation) -> None:
    assert_type((await chat.run("Hi", output=Trip, max_turns=3)).output, Trip)
    assert_type(await chat.run("Hi", agent=Agent(), debug=True), Response[Any])
    async with chat.stream("Hi", output=Output(Trip)) as run:
        assert_type(run.response.output, Trip)
    await chat.run("Hi", resume=True)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

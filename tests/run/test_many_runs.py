"""Many runs on one swarm and one agent at once: right answers, separate contexts, and no reference after their end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Response, Result
from aswarm.testing import Request, ScriptedAnswer, ScriptedModel, call, check_history

pytestmark = pytest.mark.slow


def script(request: Request) -> ScriptedAnswer:
    """Answer in three turns, by the messages: note, hand off, and repeat the notes. Each answer comes late and in pieces."""
    tools = [message["content"] for message in request.messages if message["role"] == "tool"]
    asked = request.messages[1]["content"]
    if not tools:
        return ScriptedAnswer(calls=[call("note", text=f"{asked}/{n}") for n in range(2)], pause=0.0005)
    if len(tools) == 2:
        return ScriptedAnswer(calls=[call("transfer_to_second"), call("keep", key=asked)], pause=0.0005)
    return ScriptedAnswer(f"Second: {tools[0]} {tools[1]}; {request.messages[0]['content']}", pause=0.0005)


class Payload:
    """A value of a context, for weak references."""


async def note(text: str, context_variables: Mapping[str, Any]) -> str:
    await anyio.sleep(0)
    return f"{context_variables['who']} noted {text}"


async def keep(key: str) -> Result:
    return Result(value="kept", context_variables={"key": key})


def agents() -> Agent:
    second = Agent(name="Second", instructions=_second)
    return Agent(name="First", functions=[note, keep, second])


async def _second(context_variables: Mapping[str, Any]) -> str:
    return f"for {context_variables['who']} with {context_variables['key']}"


async def one(swarm: AsyncSwarm, agent: Agent, number: int) -> Response:
    """Run `number` in one of three ways."""
    context = {"who": f"w{number}", "payload": Payload()}
    if number % 3 == 0:
        return await swarm.run(agent, f"q{number}", context)
    if number % 3 == 1:
        stream = swarm.run(agent, f"q{number}", context, stream=True)
        return [event async for event in stream][-1]["response"]  # type: ignore[no-any-return]
    async with swarm.stream(agent, f"q{number}", context) as run:
        async for _ in run:
            pass
    return run.response


def check(response: Response, number: int) -> None:
    noted = [f"w{number} noted q{number}/{n}" for n in range(2)]
    assert response.text == f"Second: {noted[0]} {noted[1]}; for w{number} with q{number}"
    assert response.context_variables["key"] == f"q{number}"
    assert response.usage.requests == 3
    check_history(response.messages)


@pytest.mark.parametrize("size", [60, pytest.param(300, marks=pytest.mark.heavy)])
async def test_many_runs_at_once(size: int) -> None:
    """Each of the concurrent runs gets the answer to its own question, with its own context; the agent is unchanged."""
    swarm, agent = AsyncSwarm(client=ScriptedModel(script, cut=8).client()), agents()
    before, functions = agent.model_copy(), list(agent.functions)
    responses: dict[int, Response] = {}

    async def store(number: int) -> None:
        responses[number] = await one(swarm, agent, number)

    async with anyio.create_task_group() as group:
        for number in range(size):
            group.start_soon(store, number)
    for number, response in responses.items():
        check(response, number)
    assert len(responses) == size
    assert agent == before and all(map(lambda a, b: a is b, agent.functions, functions))


@pytest.mark.asyncio
async def test_functions_made_for_one_run_go_with_it() -> None:
    """No cache keeps closures and agents that are made for each request, as web handlers do."""
    swarm = AsyncSwarm(client=ScriptedModel(lambda _: "Hi").client())
    made: list[weakref.ref[Any]] = []

    async def handle(number: int) -> None:
        class Local:
            """A hint that only this call knows."""

        async def local(what: str) -> str:
            return f"{number} {what} {Local}"

        payload = Payload()

        def bound(what: str = "x", *, secret: object = payload) -> str:
            return str(number)

        def hidden(context_variables: dict[str, Any]) -> str:
            return str(payload)

        agent = Agent(name=f"A{number}", functions=[local, hidden])
        await swarm.run(agent, "Hi", {"payload": payload})
        made.extend(map(weakref.ref, (local, hidden, payload)))

    await asyncio.gather(*(handle(number) for number in range(50)))
    gc.collect()
    assert [reference for reference in made if reference() is not None] == []

"""Thousands of runs on one swarm and one agent at once: right answers, separate contexts, and no memory after their end."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, CompletionRequest, Response, Result
from aswarm.testing import ScriptedAnswer, ScriptedCall, ScriptedModel, call, check_history

pytestmark = pytest.mark.slow


class Echo:
    """A source whose answers depend on the messages, in three turns: note, hand off, and repeat the notes."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        await anyio.sleep(0)
        messages = request.body["messages"]
        tools = [message["content"] for message in messages if message["role"] == "tool"]
        asked, text = messages[1]["content"], ""
        if tools and self.fails:
            raise ValueError("the source failed")
        calls: list[ScriptedCall] = []
        if not tools:
            calls = [call("note", text=f"{asked}/{n}") for n in range(2)]
        elif len(tools) == 2:
            calls = [call("transfer_to_second"), call("keep", key=asked)]
        else:
            text = f"{request.agent.name}: {tools[0]} {tools[1]}; {messages[0]['content']}"
        for place in range(0, len(text), 8):
            yield {"choices": [{"index": 0, "delta": {"content": text[place : place + 8]}, "finish_reason": None}]}
        made = [
            {
                "index": n,
                "id": each.id,
                "type": "function",
                "function": {"name": each.name, "arguments": each.arguments},
            }
            for n, each in enumerate(calls)
        ]
        yield {"choices": [{"index": 0, "delta": {"tool_calls": made or None}, "finish_reason": "stop"}]}


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


@pytest.mark.anyio
@pytest.mark.parametrize("size", [300, pytest.param(2000, marks=pytest.mark.heavy)])
async def test_many_runs_at_once(size: int) -> None:
    """Each of the concurrent runs gets the answer to its own question, with its own context; the agent is unchanged."""
    swarm, agent = AsyncSwarm(client=Echo()), agents()
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


@pytest.mark.anyio
@pytest.mark.parametrize("size", [60, pytest.param(300, marks=pytest.mark.heavy)])
async def test_runs_over_a_real_client_do_not_mix(size: int) -> None:
    """Concurrent streams through one `AsyncOpenAI`, each answered late and in pieces, stay separate."""

    def script(request: Any) -> ScriptedAnswer:
        asked = request.messages[1]["content"]
        if request.messages[-1]["role"] == "user":
            return ScriptedAnswer(calls=[call("note", text=asked)], pause=0.0005)
        return ScriptedAnswer(request.messages[-1]["content"], pause=0.0005)

    swarm, agent, texts = AsyncSwarm(client=ScriptedModel(script, cut=4).client()), agents(), dict[int, str]()

    async def store(number: int) -> None:
        async with swarm.stream(agent, f"q{number}", {"who": f"w{number}"}) as run:
            async for _ in run:
                pass
        texts[number] = run.response.text

    async with anyio.create_task_group() as group:
        for number in range(size):
            group.start_soon(store, number)
    assert texts == {number: f"w{number} noted q{number}" for number in range(size)}


@pytest.mark.asyncio
@pytest.mark.heavy
async def test_memory_is_flat() -> None:
    """After a warm-up, another five hundred runs keep no more memory than the first runs."""
    swarm, agent = AsyncSwarm(client=Echo()), agents()

    async def batch(size: int) -> int:
        await asyncio.gather(*(one(swarm, agent, number) for number in range(size)))
        await asyncio.sleep(0)  # until then asyncio itself holds the results
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = [await batch(100) for _ in range(3)]
        after = [await batch(100) for _ in range(5)]
    finally:
        tracemalloc.stop()
    assert after[-1] - before[-1] < 50_000, "a run keeps more than 100 bytes"


@pytest.mark.asyncio
@pytest.mark.parametrize("ending", ["answer", "error", "left", "cancelled"])
async def test_no_reference_to_a_finished_run_is_kept(ending: str) -> None:
    """After any end of a run, and without its response, the objects of its context are collected."""
    swarm, agent = AsyncSwarm(Echo(fails=ending == "error")), agents()
    payloads: list[weakref.ref[Payload]] = []

    async def run() -> None:
        payload = Payload()
        payloads.append(weakref.ref(payload))
        async with swarm.stream(agent, "q", {"who": "w", "payload": payload}) as events:
            async for event in events:
                if ending in ("left", "cancelled") and type(event).__name__ == "ToolCallStarted":
                    if ending == "left":
                        break
                    await asyncio.sleep(60)

    tasks = [asyncio.ensure_future(run()) for _ in range(20)]
    if ending == "cancelled":
        await asyncio.sleep(0.2)
        assert all([task.cancel() for task in tasks])  # noqa: C419 - every one
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {isinstance(result, BaseException) for result in results} == {ending in ("error", "cancelled")}
    del tasks, results
    await asyncio.sleep(0)  # until then asyncio itself holds the results
    gc.collect()
    assert [payload for payload in payloads if payload() is not None] == []


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
        await swarm.run(agent, "Hi")
        made.extend(map(weakref.ref, (local, hidden, payload)))

    await asyncio.gather(*(handle(number) for number in range(50)))
    gc.collect()
    assert [reference for reference in made if reference() is not None] == []

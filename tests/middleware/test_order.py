"""The order of middleware, its number of calls, and the event loop in which it is called."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
import sniffio

from aswarm import Agent, AsyncSwarm, Budget, RateLimits
from aswarm.middleware import (
    CompletionHandler,
    CompletionRequest,
    Handlers,
    Middleware,
    Started,
    ToolCall,
    ToolOutcome,
    retry,
)
from aswarm.testing import Failure, ScriptedModel, call
from tests.support.middleware.middlewares import Chunks, around_completions, passed_on
from tests.support.providers.sources import KINDS, client_of, script_of
from tests.support.rate_limits.timed_models import TimedModel
from tests.support.rate_limits.timed_models import client_of as client_without_threads
from tests.support.run.ways_to_run import FACES, consume
from tests.support.runtime.virtual_time import in_virtual_time


async def look(city: str = "Oslo") -> str:
    """Look."""
    return f"{city} is sunny"


def noting(name: str, notes: list[str]) -> Middleware:
    """Middleware that notes the start and the end of its handlers."""

    def wrap(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            notes.append(f"{name} asks")
            async with aclosing(handlers.complete(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            notes.append(f"{name} has it")

        async def call_tool(call: ToolCall, context: dict[str, Any], started: Started) -> ToolOutcome:
            notes.append(f"{name} calls")
            outcome = await handlers.call_tool(call, context, started)
            notes.append(f"{name} called")
            return outcome

        return replace(handlers, complete=complete, call_tool=call_tool)

    return wrap


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_is_the_outermost(kind: str, stream: bool) -> None:
    """Handlers nest in the order of the list, over every kind of client."""
    notes: list[str] = []
    middleware = [noting("a", notes), noting("b", notes)]
    swarm = AsyncSwarm(client_of(kind, script_of([call("look"), "Sunny."])), middleware=middleware)
    async with swarm.stream(Agent(functions=[look]), "Hi", deltas=stream) as run:
        async for _ in run:
            pass
    turn = ["a asks", "b asks", "b has it", "a has it"]
    assert notes == [*turn, "a calls", "b calls", "b called", "a called", *turn]
    assert run.response.text == "Sunny."


async def test_debug_prints_the_answer_of_a_middleware(capsys: pytest.CaptureFixture[str]) -> None:
    """`debug=True` is outside: it prints the request before middleware, and the answer after it."""

    async def rewriting(inner: CompletionHandler, request: CompletionRequest) -> Chunks:
        request.body["messages"][-1]["content"] = "changed"
        async for _ in passed_on(inner, request):
            pass
        yield {"choices": [{"message": {"content": "mine"}, "finish_reason": "stop"}]}

    model = ScriptedModel(["the model's"])
    swarm = AsyncSwarm(model.client(), middleware=[around_completions(rewriting)])
    await swarm.run(Agent(), "as asked", debug=True)
    printed = capsys.readouterr().out
    assert "as asked" in printed
    assert "mine" in printed
    assert "changed" not in printed
    assert "the model's" not in printed
    assert model.requests[0].messages[-1]["content"] == "changed"


async def test_a_budget_refuses_a_call_before_debug_and_middleware(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the call within the budget is printed, and only this call passes the middleware."""
    notes: list[str] = []
    model = ScriptedModel([[call("look", city="Oslo"), call("look", city="Bergen")], "Done."])
    swarm = AsyncSwarm(model.client(), middleware=[noting("mine", notes)])
    await swarm.run(Agent(functions=[look]), "Hi", debug=True, budget=Budget(tool_calls=1))
    assert notes.count("mine calls") == 1
    assert capsys.readouterr().out.count("Processing tool call") == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_journal_records_the_answer_of_a_middleware(tmp_path: Path) -> None:
    """A batch that is resumed from its journal does not ask the middleware again."""
    notes: list[str] = []
    model = ScriptedModel([call("look"), "Sunny.", "never asked"])
    agent = Agent(functions=[look])
    for _ in range(2):
        swarm = AsyncSwarm(model.client(), middleware=[noting("mine", notes)])
        async with swarm.batch(agent, ["Hi"], journal=tmp_path / "journal") as outcomes:
            texts = [outcome.response.text async for outcome in outcomes]
        assert texts == ["Sunny."]
    assert len(model.requests) == 2
    assert notes.count("mine asks") == 2
    assert notes.count("mine calls") == 1


@in_virtual_time
async def test_retries_of_a_batch_and_limits_are_inside() -> None:
    """A user's middleware sees one request, and each request that the batch and the limits send is within the limits."""
    notes: list[str] = []
    model = TimedModel([Failure(429, headers={"retry-after-ms": "1"}), Failure(500), "Done."])
    limits = RateLimits(requests_per_minute=1)
    swarm = AsyncSwarm(client_without_threads(model), rate_limits=limits, middleware=[noting("mine", notes)])
    async with swarm.batch(Agent(), ["Hi"], attempts=2) as outcomes:
        (outcome,) = [outcome async for outcome in outcomes]
    assert outcome.response is not None
    assert outcome.response.text == "Done."
    assert notes == ["mine asks", "mine has it"]
    assert [later - at >= 59 for at, later in pairwise(model.times)] == [True, True]


@in_virtual_time
async def test_retry_is_outside_of_the_middleware_after_it() -> None:
    """In `[retry(), x]`, `x` sees every attempt; in `[x, retry()]`, it sees one."""
    for order, asked in (("outside", 2), ("inside", 1)):
        notes: list[str] = []
        model = ScriptedModel([Failure(500, headers={"retry-after-ms": "1"}), "Done."])
        listed = [retry(2), noting("mine", notes)]
        swarm = AsyncSwarm(model.client(), middleware=listed if order == "outside" else listed[::-1])
        await swarm.run(Agent(), "Hi")
        assert notes.count("mine asks") == asked


async def test_it_is_called_once_for_each_run_in_its_event_loop() -> None:
    """A run with several turns and tools calls the middleware once, in the thread and the event loop of the run."""
    places: list[tuple[int, str]] = []

    def here() -> tuple[int, str]:
        return threading.get_ident(), sniffio.current_async_library()

    def counting(handlers: Handlers) -> Handlers:
        places.append(here())
        return handlers

    swarm = AsyncSwarm(script_of([call("look"), call("look"), "Done."] * 3).client(), middleware=[counting])
    for face in FACES:
        await consume(swarm, Agent(functions=[look]), face, [])
    assert places == [here()] * 3


def numbering(handlers: Handlers) -> Handlers:
    """Counts the completions of a run in a closure, and adds the number at the end of each answer."""
    count = 0

    async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        nonlocal count
        count += 1
        mine = count
        await anyio.lowlevel.checkpoint()
        async with aclosing(handlers.complete(request)) as chunks:
            async for chunk in chunks:
                yield chunk
        handlers.run.context_variables["seen"].append((handlers.run.run_id, mine))

    return replace(handlers, complete=complete)


class Talk:
    """A source that calls a tool once for each conversation, and then answers."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        await anyio.lowlevel.checkpoint()
        is_done = request.body["messages"][-1]["role"] == "tool"
        asked = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        message = {"content": "Done."} if is_done else {"content": None, "tool_calls": [asked]}
        yield {"choices": [{"message": message, "finish_reason": "stop"}]}


class Shared:
    """A list that runs share: context variables of other types are not copied."""

    def __init__(self) -> None:
        self.items: list[tuple[str, int]] = []

    def append(self, item: tuple[str, int]) -> None:
        self.items.append(item)


@pytest.mark.parametrize("size", [100, pytest.param(1000, marks=pytest.mark.heavy)])
async def test_the_state_of_many_runs_does_not_mix(size: int) -> None:
    """A closure belongs to one run, so each concurrent run counts its own completions."""
    seen = Shared()
    swarm = AsyncSwarm(Talk(), middleware=[numbering])
    agent = Agent(functions=[look])

    async def one(number: int) -> None:
        await swarm.run(agent, "Hi", {"seen": seen}, run_id=str(number))

    async with anyio.create_task_group() as group:
        for number in range(size):
            group.start_soon(one, number)
    assert sorted(seen.items) == sorted((str(number), turn) for number in range(size) for turn in (1, 2))


async def test_a_swarm_keeps_its_own_list() -> None:
    """A later change of the caller's list changes nothing, and an iterator is read once."""
    notes: list[str] = []
    listed = [noting("a", notes)]
    first = AsyncSwarm(ScriptedModel(["Hi"]).client(), middleware=listed)
    second = AsyncSwarm(ScriptedModel(["Hi", "Hi"]).client(), middleware=iter([noting("b", notes)]))
    listed.clear()
    await first.run(Agent(), "Hi")
    await second.run(Agent(), "Hi")
    await second.run(Agent(), "Hi")
    assert [note for note in notes if note.endswith("asks")] == ["a asks", "b asks", "b asks"]

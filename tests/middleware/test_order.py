"""Where middleware stands: the order of wrapping, and once for each run, in its event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, RateLimits
from aswarm._providers.openai import source_for
from aswarm._run.handlers import MiddlewareStack
from aswarm._run.state import RunState
from aswarm._runtime.backend import current_loop
from aswarm._wire.request import RequestSettings
from aswarm.middleware import CompletionRequest, Handlers, Middleware, RunInfo, Started, ToolCall, ToolOutcome, retry
from aswarm.testing import Failure, ScriptedModel, call
from tests.support.providers.sources import KINDS, client_of, script_of
from tests.support.runtime.virtual_time import in_virtual_time

pytestmark = pytest.mark.anyio


async def look(city: str = "Oslo") -> str:
    """Look."""
    return f"{city} is sunny"


def noting(name: str, notes: list[str]) -> Middleware:
    """Middleware that notes when its handlers are entered and left."""

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
    """Handlers nest in the order of the list, for both handlers, over every kind of client."""
    notes: list[str] = []
    swarm = AsyncSwarm(
        client_of(kind, script_of([call("look"), "Sunny."])), middleware=[noting("a", notes), noting("b", notes)]
    )
    run = swarm.stream(Agent(functions=[look]), "Hi", deltas=stream)
    async with run:
        async for _ in run:
            pass
    turn = ["a asks", "b asks", "b has it", "a has it"]
    assert notes == [*turn, "a calls", "b calls", "b called", "a called", *turn]
    assert run.response.text == "Sunny."


@pytest.mark.parametrize("kind", KINDS)
async def test_the_order_of_all_layers(kind: str) -> None:
    """From the outside in: budget, debug, recorder, the user's, retries, rate limits, source."""
    layers = ["budget", "debug", "recorder", "user", "retries", "rate_limits"]
    notes: list[str] = []
    stack = MiddlewareStack(**{layer: noting(layer, notes) for layer in reversed(layers)})
    source = source_for(client_of(kind, script_of(["Hi"])))

    async def no_calls(*_: object) -> ToolOutcome:
        raise AssertionError("called")

    state = RunState(Agent(), "Hi", None)
    handlers = stack.wrap(Handlers(source.complete, no_calls, RunInfo("id", state)))
    async with aclosing(handlers.complete(state.request(None, RequestSettings(stream=False)))) as chunks:
        async for _ in chunks:
            pass
    assert notes == [*(f"{layer} asks" for layer in layers), *(f"{layer} has it" for layer in reversed(layers))]


async def test_debug_sees_what_a_middleware_gives_back(capsys: pytest.CaptureFixture[str]) -> None:
    """`debug=True` stands outside: it prints the request before middleware, and the answer after it."""

    def rewriting(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            request.body["messages"][-1]["content"] = "changed"
            async with aclosing(handlers.complete(request)) as chunks:
                async for _ in chunks:
                    pass
            yield {"choices": [{"message": {"content": "mine"}, "finish_reason": "stop"}]}

        return replace(handlers, complete=complete)

    model = ScriptedModel(["the model's"])
    await AsyncSwarm(model.client(), middleware=[rewriting]).run(Agent(), "as asked", debug=True)
    printed = capsys.readouterr().out
    assert "as asked" in printed
    assert "mine" in printed
    assert "changed" not in printed
    assert "the model's" not in printed
    assert model.requests[0].messages[-1]["content"] == "changed"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_journal_records_what_a_middleware_gives_back(tmp_path: Path) -> None:
    """The journal stands outside of the middleware: a batch that is resumed does not ask the middleware again."""
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
async def test_retries_of_a_batch_and_limits_stand_inside() -> None:
    """A user's middleware sees one request where the batch and the limits send several."""
    notes: list[str] = []
    model = ScriptedModel([Failure(429, headers={"retry-after-ms": "1"}), Failure(500), "Done."])
    swarm = AsyncSwarm(
        model.client(), rate_limits=RateLimits(requests_per_minute=1000), middleware=[noting("mine", notes)]
    )
    async with swarm.batch(Agent(), ["Hi"], attempts=2) as outcomes:
        (outcome,) = [outcome async for outcome in outcomes]
    assert outcome.response is not None
    assert outcome.response.text == "Done."
    assert notes == ["mine asks", "mine has it"]
    assert len(model.requests) == 3


@in_virtual_time
async def test_retry_in_the_list_stands_outside_of_what_follows_it() -> None:
    """`[retry(), x]`: `x` sees every attempt; `[x, retry()]`: it sees one."""
    for order, asked in (("outside", 2), ("inside", 1)):
        notes: list[str] = []
        model = ScriptedModel([Failure(500, headers={"retry-after-ms": "1"}), "Done."])
        listed = [retry(2), noting("mine", notes)]
        swarm = AsyncSwarm(model.client(), middleware=listed if order == "outside" else listed[::-1])
        await swarm.run(Agent(), "Hi")
        assert notes.count("mine asks") == asked


@in_virtual_time
async def test_limits_are_kept_for_every_attempt() -> None:
    """A middleware that asks twice takes two places in the limits."""

    def twice(handlers: Handlers) -> Handlers:
        async def complete(request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
            for _ in range(2):
                async with aclosing(handlers.complete(request)) as chunks:
                    got = [chunk async for chunk in chunks]
            for chunk in got:
                yield chunk

        return replace(handlers, complete=complete)

    model = ScriptedModel(["a", "b"])
    swarm = AsyncSwarm(model.client(), rate_limits=RateLimits(requests_per_minute=1), middleware=[twice])
    with anyio.move_on_after(59):
        await swarm.run(Agent(), "Hi")
    assert len(model.requests) == 1


# --- once for each run ------------------------------------------------------------------------------------------------


async def test_it_is_called_once_for_each_run_in_its_event_loop() -> None:
    """A run with several turns and tools calls the middleware once, where the event loop of the run is running."""
    loops: list[object] = []

    def counting(handlers: Handlers) -> Handlers:
        loops.append(current_loop())
        return handlers

    swarm = AsyncSwarm(script_of([call("look"), call("look"), "Done."] * 3).client(), middleware=[counting])
    agent = Agent(functions=[look])
    await swarm.run(agent, "Hi")
    async for _ in swarm.run(agent, "Hi", stream=True):
        pass
    async with swarm.stream(agent, "Hi") as run:
        async for _ in run:
            pass
    assert loops == [current_loop()] * 3


async def test_it_is_not_called_before_the_run_begins() -> None:
    """A stream that nobody reads calls no middleware."""
    called: list[str] = []

    def noted(handlers: Handlers) -> Handlers:
        called.append(handlers.run.run_id)
        return handlers

    swarm = AsyncSwarm(ScriptedModel([]).client(), middleware=[noted])
    await swarm.run(Agent(), "Hi", stream=True).aclose()
    async with swarm.stream(Agent(), "Hi"):
        pass
    assert called == []


def numbering(handlers: Handlers) -> Handlers:
    """Counts the completions of a run in a closure, and says which it was at the end of the answer."""
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
    """A closure belongs to one run: each of the concurrent runs counts its own completions."""
    seen = Shared()
    swarm = AsyncSwarm(Talk(), middleware=[numbering])
    agent = Agent(functions=[look])

    async def one(number: int) -> None:
        await swarm.run(agent, "Hi", {"seen": seen}, run_id=str(number))

    async with anyio.create_task_group() as group:
        for number in range(size):
            group.start_soon(one, number)
    assert sorted(seen.items) == sorted((str(number), turn) for number in range(size) for turn in (1, 2))


async def test_the_items_of_a_batch_have_a_middleware_each() -> None:
    """`batch()` runs are runs: each item has its own closure and its own id."""
    seen = Shared()
    swarm = AsyncSwarm(Talk(), middleware=[numbering])
    items = [f"question {number}" for number in range(50)]
    async with swarm.batch(
        Agent(functions=[look]), items, concurrency=20, context_variables={"seen": seen}
    ) as outcomes:
        ids = [outcome.response.run_id async for outcome in outcomes if outcome.response]
    assert len(set(ids)) == 50
    assert sorted(seen.items) == sorted((each, turn) for each in ids for turn in (1, 2))


async def test_a_swarm_keeps_its_own_list() -> None:
    """What is done to the caller's list afterwards changes nothing; an iterator is read once."""
    notes: list[str] = []
    listed = [noting("a", notes)]
    first = AsyncSwarm(ScriptedModel(["Hi"]).client(), middleware=listed)
    second = AsyncSwarm(ScriptedModel(["Hi", "Hi"]).client(), middleware=iter([noting("b", notes)]))
    listed.clear()
    await first.run(Agent(), "Hi")
    await second.run(Agent(), "Hi")
    await second.run(Agent(), "Hi")
    assert [note for note in notes if note.endswith("asks")] == ["a asks", "b asks", "b asks"]

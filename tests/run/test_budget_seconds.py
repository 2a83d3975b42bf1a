"""Budgets of seconds: calls, instructions and completions are cut at the deadline of their run."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Budget, BudgetError, Response, RunFinished, tool
from aswarm.events import TurnStarted
from aswarm.sources import CompletionRequest
from aswarm.testing import call
from tests.support.run.budget_shop import Shop
from tests.support.run.one_turn import contents
from tests.support.run.ways_to_run import consume
from tests.support.runtime.virtual_time import jump, virtual_backend

VIRTUAL = pytest.mark.parametrize(
    "anyio_backend", [virtual_backend("asyncio"), virtual_backend("trio")], ids=["asyncio", "trio"]
)


async def slow() -> str:
    """Takes a minute."""
    await anyio.sleep(60)
    return "slept"


class SlowSource:
    """A source that sends "Hello", waits for a minute, and sends " there". The second answer comes at once."""

    def __init__(self) -> None:
        self.choices: list[Any] = []
        self.closed = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        self.choices.append(request.body.get("tool_choice"))
        try:
            yield chunk("Hello")
            await anyio.sleep(0 if len(self.choices) > 1 else 60)
            yield chunk(" there", "stop")
        finally:
            self.closed += 1


def chunk(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]}


@VIRTUAL
async def test_a_call_is_cut_at_the_deadline() -> None:
    """The outcome of the running call is unknown, and the next call does not start."""

    @tool(concurrent=False)
    async def later() -> str:
        raise AssertionError

    shop = Shop([call("look"), call("slow"), call("later")])
    shop.agent.functions += [slow, later]
    start = anyio.current_time()
    response = await shop.run(Budget(seconds=10))
    assert anyio.current_time() - start < 11
    assert (response.stop, response.spent) == ("budget", "seconds")
    assert contents(response) == [
        "seen 0",
        "cancelled; its outcome is unknown (the budget of 10 seconds is used up)",
        "not run: the budget of 10 seconds is used up",
    ]
    assert [each.name for each in response.unknown_calls] == ["slow"]


@VIRTUAL
@pytest.mark.parametrize("then", ["stop", "answer"])
async def test_instructions_are_cut_at_the_deadline(then: Any) -> None:
    """A run does not wait longer for its instructions, and makes no request with them."""

    async def instructions() -> str:
        await anyio.sleep(60)
        return "Be brief."

    shop = Shop("Hello.")
    shop.agent.instructions = instructions
    start = anyio.current_time()
    response = await shop.run(Budget(seconds=10, then=then))
    assert anyio.current_time() - start < (11 if then == "stop" else 80)
    assert (response.stop, response.spent, len(shop.model.requests)) == ("budget", "seconds", then == "answer")


@VIRTUAL
@pytest.mark.parametrize("face", ["stream", "run(stream=True)"])
@pytest.mark.parametrize("then", ["stop", "answer", "raise"])
async def test_a_completion_is_cut_at_the_deadline(face: str, then: Any) -> None:
    """The text of the completion is `partial` and in no message, and the source is closed, for each `then`."""
    source = SlowSource()
    agent, swarm, budget = Agent(functions=[slow]), AsyncSwarm(source), Budget(seconds=10, then=then)
    left: list[Response] = []
    if then == "raise":
        with pytest.raises(BudgetError) as caught:
            await consume(swarm, agent, face, left, budget=budget)
        assert caught.value.partial == "Hello"
    else:
        await consume(swarm, agent, face, left, budget=budget)
    assert (left[0].spent, left[0].stop) == ("seconds", "error" if then == "raise" else "budget")
    assert left[0].text == ("Hello there" if then == "answer" else "")
    assert source.choices == ([None, "none"] if then == "answer" else [None])
    assert source.closed == len(source.choices)


@VIRTUAL
@pytest.mark.parametrize("then", ["stop", "answer"])
async def test_the_events_of_a_cut_completion(then: Any) -> None:
    """Each "start" of Swarm's events has its "end"; typed events end with RunFinished, and `partial` has the text."""
    budget = Budget(seconds=10, then=then)
    run = AsyncSwarm(SlowSource()).run(Agent(), "Hi", stream=True, budget=budget)
    marks = [event["delim"] async for event in run if "delim" in event]
    assert marks == ["start", "end"] * (1 if then == "stop" else 2)
    async with AsyncSwarm(SlowSource()).stream(Agent(), "Hi", budget=budget) as typed:
        assert isinstance([event async for event in typed][-1], RunFinished)
    assert typed.response.stop == "budget"
    if then == "stop":
        assert (typed.partial, typed.response.messages) == ("Hello", [])


@VIRTUAL
async def test_a_reader_that_takes_its_time_uses_up_the_seconds() -> None:
    """The seconds count from the start of the run, also while the reader does other things."""
    source = SlowSource()
    source.choices.append(None)
    async with AsyncSwarm(source).stream(Agent(), "Hi", budget=Budget(seconds=10)) as run:
        async for event in run:
            if isinstance(event, TurnStarted):
                await anyio.sleep(11)
    assert (run.response.stop, len(source.choices)) == ("budget", 1)  # the request was not sent


async def use_up(started: threading.Event, over: threading.Event | None = None) -> None:
    """Let a budget of 60 seconds be over when a function has started. `over`: set when the run knows it."""
    await anyio.to_thread.run_sync(started.wait, 120)
    jump(60)
    await anyio.sleep(0)
    await anyio.wait_all_tasks_blocked()
    if over is not None:
        over.set()


async def test_a_function_in_a_thread_is_waited_for() -> None:
    """A plain function cannot be stopped, so the run stops after it, with its result."""
    shop, started, over = Shop([call("block"), call("look")]), threading.Event(), threading.Event()

    def block() -> str:
        started.set()
        assert over.wait(120)
        return "done"

    shop.agent.functions.append(block)
    async with anyio.create_task_group() as group:
        group.start_soon(use_up, started, over)
        response = await shop.run(Budget(seconds=60))
    assert contents(response) == ["done", "not run: the budget of 60 seconds is used up"]
    assert (response.spent, response.unknown_calls) == ("seconds", [])


async def test_a_function_that_may_be_abandoned_is_left() -> None:
    """The run does not wait for the function, and its tool message warns that it may still be running."""
    started, ended = threading.Event(), threading.Event()

    @tool(abandon_on_cancel=True)
    def block() -> str:
        started.set()
        ended.wait(120)
        return "done"

    shop = Shop([call("block")])
    shop.agent.functions.append(block)
    async with anyio.create_task_group() as group:
        group.start_soon(use_up, started)
        response = await shop.run(Budget(seconds=60))
    ended.set()
    expected = "cancelled; its outcome is unknown; it may still be running (the budget of 60 seconds is used up)"
    assert contents(response) == [expected]
    assert [each.name for each in response.unknown_calls] == ["block"]

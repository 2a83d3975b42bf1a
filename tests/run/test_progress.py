"""Progress of a function while it runs: events in order, from every place where a function may run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
import sniffio

from aswarm import Agent, AsyncSwarm, Result, Swarm, ToolCallFinished, ToolCallStarted, progress, tool
from aswarm.events import ToolProgress
from aswarm.testing import ScriptedModel, call
from aswarm.tools import Progress
from tests.support.runtime.virtual_time import jump


async def events_of(*functions: Any, calls: int = 1) -> list[Any]:
    """Return the events of one turn that calls each function."""
    steps = [[call(function.__name__, call_id=str(number)) for number, function in enumerate(functions)], "Done."]
    swarm = AsyncSwarm(ScriptedModel(steps).client())
    async with swarm.stream(Agent(functions=list(functions)), "Go") as run:
        kinds = (ToolCallStarted, ToolProgress, ToolCallFinished)
        return [event async for event in run if isinstance(event, kinds)]


def shown(events: list[Any]) -> list[Any]:
    return [event.value if isinstance(event, ToolProgress) else type(event).__name__ for event in events]


async def in_coroutine() -> str:
    """Waits between two steps."""
    progress("half")
    await anyio.lowlevel.checkpoint()
    progress({"done": 1.0})
    return "ok"


def in_thread() -> str:
    """Runs in a worker thread."""
    progress("half")
    progress({"done": 1.0})
    return "ok"


@tool(thread=False)
def on_loop() -> str:
    """Runs on the event loop."""
    progress("half")
    progress({"done": 1.0})
    return "ok"


async def in_a_thread_of_its_own() -> str:
    """Does its work in a thread of anyio."""
    return await anyio.to_thread.run_sync(in_thread)


async def in_a_thread_of_asyncio() -> str:
    """Does its work in a thread that anyio does not know; on trio it has none."""
    if sniffio.current_async_library() == "trio":
        return await anyio.to_thread.run_sync(in_thread)
    return await asyncio.to_thread(in_thread)


async def as_a_generator() -> AsyncGenerator[Any, None]:
    """Yields its progress, and its result last."""
    yield Progress("half")
    await anyio.lowlevel.checkpoint()
    yield Progress({"done": 1.0})
    yield "ok"


@pytest.mark.parametrize(
    "function",
    [in_coroutine, in_thread, on_loop, in_a_thread_of_its_own, in_a_thread_of_asyncio, as_a_generator],
    ids=lambda each: each.__name__,
)
async def test_progress_comes_in_order_while_the_function_runs(function: Callable[..., Any]) -> None:
    """Progress comes between the start and the end of its call, wherever the function runs."""
    events = await events_of(function)
    assert shown(events) == ["ToolCallStarted", "half", {"done": 1.0}, "ToolCallFinished"]
    assert (events[1].index, events[1].id, events[1].name) == (0, "0", function.__name__)
    assert events[-1].content == "ok"


async def test_progress_is_live() -> None:
    """The reader has the event before the function ends."""
    seen = anyio.Event()

    async def work() -> str:
        progress("started")
        with anyio.fail_after(60):
            await seen.wait()
        return "ok"

    swarm = AsyncSwarm(ScriptedModel([[call("work")], "Done."]).client())
    async with swarm.stream(Agent(functions=[work]), "Go") as run:
        async for event in run:
            if isinstance(event, ToolProgress):
                seen.set()
    assert run.response.text == "Done."


async def test_progress_is_in_no_history_and_no_dict_event() -> None:
    model = ScriptedModel([[call("in_coroutine")], "Done."] * 2)
    swarm, agent = AsyncSwarm(model.client()), Agent(functions=[in_coroutine])
    assert "half" not in str((await swarm.run(agent, "Go")).messages)
    assert "half" not in str([event async for event in swarm.run(agent, "Go", stream=True)])


async def test_progress_outside_of_a_call_does_nothing() -> None:
    assert await in_coroutine() == "ok"


async def test_progress_after_the_end_does_nothing() -> None:
    """A thread that was left continues, and its progress is no event."""
    started, release, ended, told = threading.Event(), threading.Event(), threading.Event(), anyio.Event()

    @tool(timeout=30, concurrent=True)
    def hang() -> str:
        started.set()
        release.wait(60)
        progress("late")
        ended.set()
        return "never"

    async def wait_for_it() -> str:
        await anyio.to_thread.run_sync(started.wait, 60)
        jump(30)
        await told.wait()
        release.set()
        await anyio.to_thread.run_sync(ended.wait, 60)
        await anyio.wait_all_tasks_blocked()
        return "ok"

    events = []
    swarm = AsyncSwarm(ScriptedModel([[call("hang"), call("wait_for_it")], "Done."]).client())
    async with swarm.stream(Agent(functions=[hang, wait_for_it]), "Go") as run:
        async for event in run:
            events.append(event)
            if isinstance(event, ToolCallFinished) and event.name == "hang":
                told.set()
    assert ended.is_set()
    assert "late" not in shown(events)


async def test_the_result_of_a_generator_is_like_any_other() -> None:
    """A generator may end with a handoff, an error or no result."""
    other = Agent(name="Other")

    async def leave() -> AsyncGenerator[Any, None]:
        yield Progress(1)
        yield Result(value="bye", agent=other, context_variables={"left": True})

    async def fail() -> AsyncGenerator[Any, None]:
        yield Progress(1)
        raise ValueError("no")

    async def nothing() -> AsyncGenerator[Any, None]:
        yield Progress(1)

    model = ScriptedModel([[call("leave"), call("fail"), call("nothing")], "Done."])
    response = await AsyncSwarm(model.client()).run(Agent(functions=[leave, fail, nothing]), "Go")
    told = [each["content"] for each in response.messages if each["role"] == "tool"]
    assert told == ["bye", "Error: ValueError: no", "None"]
    assert (response.agent, response.context_variables) == (other, {"left": True})


@pytest.mark.parametrize("how", ["timeout", "leave"])
async def test_a_generator_is_closed_when_its_call_is_cut(how: str) -> None:
    """A timeout, or a reader that leaves, runs the `finally` of the generator."""
    closed: list[str] = []

    @tool(timeout=0.05 if how == "timeout" else None)
    async def work() -> AsyncGenerator[Any, None]:
        try:
            yield Progress("started")
            await anyio.sleep(5)
            yield "never"
        finally:
            closed.append("closed")

    swarm = AsyncSwarm(ScriptedModel([[call("work")], "Done."]).client())
    with anyio.fail_after(60):
        async with swarm.stream(Agent(functions=[work]), "Go") as run:
            async for event in run:
                if isinstance(event, ToolProgress) and how == "leave":
                    break
    assert closed == ["closed"]


def test_progress_in_a_blocking_run() -> None:
    """A plain function runs in the thread of the reader, and its events come once it has returned, in order."""
    with Swarm(ScriptedModel([[call("in_thread")], "Done."]).client()).stream(
        Agent(functions=[in_thread]), "Go"
    ) as run:
        values = [event.value for event in run if isinstance(event, ToolProgress)]
    assert values == ["half", {"done": 1.0}]

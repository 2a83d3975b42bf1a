"""Timeouts and cancellation of tools: interrupted calls, awaited functions, and changes of late functions."""

from __future__ import annotations

import functools
import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from aswarm import Agent, AsyncSwarm, ToolCallFinished, tool
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.run.one_turn import contents
from tests.support.run.one_turn import run_turn as run_quick_turn
from tests.support.runtime.virtual_time import jump, virtual_backend

pytestmark = pytest.mark.slow
run_turn = functools.partial(run_quick_turn, seconds=20)  # threads may have to wait for a processor


@pytest.mark.parametrize(
    "anyio_backend", [virtual_backend("asyncio"), virtual_backend("trio")], ids=["asyncio", "trio"]
)
async def test_the_timeout_counts_from_when_the_limiter_let_it_in() -> None:
    """Waiting for a limiter takes nothing from a call's timeout."""
    let_in: list[float] = []

    @tool(limiter=anyio.CapacityLimiter(1), timeout=1.0)
    async def work() -> str:
        let_in.append(anyio.current_time())
        await anyio.sleep(0.45)
        return "ok"

    client = ScriptedModel([[call("work") for _ in range(4)], "Done"]).client()
    client._platform = "Linux"  # otherwise the client asks a thread, and virtual time does not wait for threads
    response = await AsyncSwarm(client).run(Agent(functions=[work]), "Go")
    assert contents(response) == ["ok"] * 4
    assert let_in[-1] - let_in[0] > 1.0


async def test_an_async_tool_that_times_out_is_told_so() -> None:
    """The model gets `Error: X timed out after N s.`, the tool is cancelled, its neighbours are not."""
    cleaned: list[str] = []

    @tool(timeout=0.02)
    async def hang() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            cleaned.append("hang")
        return "never"

    async def fine() -> str:
        await anyio.sleep(0.05)
        return "fine"

    response = await run_turn([hang, fine], [call("hang"), call("fine")])
    assert contents(response) == ["Error: hang timed out after 0.02 s.", "fine"]
    assert cleaned == ["hang"]


async def test_a_plain_function_that_times_out_may_still_be_running() -> None:
    """The text for the model is that it may still run; its later writes to the context are lost."""
    release, written = threading.Event(), threading.Event()

    @tool(timeout=0.05)
    def hang(context_variables: dict[str, Any]) -> str:
        context_variables["early"] = True
        release.wait(120)
        context_variables["late"] = True
        context_variables["list"].append("late")
        written.set()
        return "never"

    response = await run_turn([hang], [call("hang")], context_variables={"list": []})
    release.set()
    await anyio.to_thread.run_sync(written.wait, 15)
    assert contents(response) == ["Error: hang timed out after 0.05 s. It may still be running."]
    assert response.context_variables == {"list": []}


@pytest.mark.parametrize("options", [{"timeout": 10.0}, {"abandon_on_cancel": True}])
async def test_a_copy_of_the_context_is_merged_in_time(options: dict[str, Any]) -> None:
    """A plain function that works on a copy and returns in time has changed the context like any other."""

    @tool(**options)
    def change(context_variables: dict[str, Any]) -> str:
        context_variables["new"] = 1
        context_variables["list"].append(2)
        del context_variables["old"]
        return "ok"

    response = await run_turn([change], [call("change")], context_variables={"list": [], "old": 0})
    assert response.context_variables == {"new": 1, "list": [2]}


async def test_a_cancelled_run_waits_for_a_plain_function() -> None:
    """By default a thread is never left behind: the cancelled run ends when its plain function has returned."""
    started, release = threading.Event(), threading.Event()
    ended: list[str] = []

    def work() -> str:
        started.set()
        release.wait(120)
        ended.append("work")
        return "ok"

    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            swarm = AsyncSwarm(client=ScriptedModel([call("work"), "Done"]).client())
            group.start_soon(swarm.run, Agent(functions=[work]), "Go")
            await anyio.to_thread.run_sync(started.wait, 15)
            group.cancel_scope.cancel()
            threading.Timer(0.05, release.set).start()
    assert ended == ["work"]


async def test_abandon_on_cancel_does_not_wait() -> None:
    """With `abandon_on_cancel=True` the cancelled run ends at once, and in its history the call may still run."""
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    @tool(abandon_on_cancel=True)
    def work(context_variables: dict[str, Any]) -> str:
        started.set()
        release.wait(120)
        context_variables["late"] = True
        ended.set()
        return "ok"

    swarm = AsyncSwarm(client=ScriptedModel([call("work"), "Done"]).client())
    stream = swarm.stream(Agent(functions=[work]), "Go")

    async def consume() -> None:
        async with stream as run:
            async for _ in run:
                pass

    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            await anyio.to_thread.run_sync(started.wait, 15)
            group.cancel_scope.cancel()
    assert not ended.is_set()
    release.set()
    await anyio.to_thread.run_sync(ended.wait, 15)
    assert contents(stream.response) == ["cancelled; its outcome is unknown; it may still be running"]
    assert stream.response.context_variables == {}
    check_history(stream.response.messages)


async def test_a_token_is_held_until_the_thread_really_ends() -> None:
    """After a timeout the abandoned thread still counts: the next plain function waits for it."""
    started, release, order, told = threading.Event(), threading.Event(), list[str](), anyio.Event()

    @tool(timeout=30)
    def hang() -> str:
        started.set()
        release.wait(60)
        order.append("hang ended")
        return "never"

    def after() -> str:
        order.append("after")
        return "ok"

    async def release_after_the_timeout() -> None:
        await anyio.to_thread.run_sync(started.wait, 60)
        jump(30)
        await told.wait()
        await anyio.wait_all_tasks_blocked()
        release.set()

    model = ScriptedModel([[call("hang"), call("after")], "Done"])
    swarm = AsyncSwarm(model.client(), max_threads=1)
    with anyio.fail_after(120):
        async with anyio.create_task_group() as group, swarm.stream(Agent(functions=[hang, after]), "Go") as run:
            group.start_soon(release_after_the_timeout)
            async for event in run:
                if isinstance(event, ToolCallFinished) and event.name == "hang":
                    told.set()
    assert contents(run.response) == ["Error: hang timed out after 30 s. It may still be running.", "ok"]
    assert order == ["hang ended", "after"]

"""Errors that leave a run as themselves: exit and interrupt, errors of hooks, and cancellations that tools swallow or raise."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Response, RunError, tool
from aswarm.testing import ScriptedModel, call, check_history
from aswarm.tools import ToolFailure
from tests.support.leaving.run_scenes import UNKNOWN, USER, nothing_left_behind
from tests.support.run.ways_to_run import FACES, answers, consume, swarm_of

EACH_FACE = pytest.mark.parametrize("face", FACES)


def a_sibling(ended: list[str]) -> Callable[[], Awaitable[str]]:
    """Return a tool that waits until it is cancelled, and records its end."""

    async def sibling() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("sibling")
        return ""

    return sibling


async def fail() -> str:
    raise ValueError("broken")


def hook(failure: ToolFailure) -> str:
    raise LookupError("no more")


async def swallow_a_cancellation() -> None:
    """Cancel the calling task, and swallow the cancellation, as a failed asyncio.TaskGroup does on Python 3.11."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("in_thread", [False, True])
@EACH_FACE
async def test_exit_and_interrupt_leave_as_themselves(face: str, in_thread: bool, kind: type[BaseException]) -> None:
    """A tool that raises KeyboardInterrupt or SystemExit has not failed: the exception leaves, and its siblings are cancelled."""
    ended: list[str] = []

    @tool(concurrent=True, thread=in_thread)
    def leave() -> str:
        raise kind("out")

    left: list[Response] = []
    async with nothing_left_behind():
        with pytest.raises(kind, match="out") as caught:
            await consume(swarm_of("sibling", "leave"), Agent(functions=[a_sibling(ended), leave]), face, left)
        assert type(caught.value) is kind
        assert ended == ["sibling"]
        check_history([USER, *left[0].messages], allow_open=True)
        assert answers(left[0]) == {"sibling": UNKNOWN, "leave": UNKNOWN}


@pytest.mark.asyncio
@EACH_FACE
async def test_a_task_that_was_cancelled_once_runs_agents_as_any_other(face: str) -> None:
    """After a swallowed cancellation, a hook still ends the run, threads work, and calls time out."""

    @tool(timeout=0.01)
    async def slow() -> None:
        await anyio.sleep_forever()

    def plain() -> str:
        return "plain done"

    left: list[Response] = []
    await swallow_a_cancellation()
    with pytest.raises(RunError, match="no more"):
        await consume(swarm_of("fail", tool_error=hook), Agent(functions=[fail]), face, [])
    await consume(swarm_of("slow", "plain"), Agent(functions=[slow, plain]), face, left)
    assert answers(left[0]) == {"slow": "Error: slow timed out after 0.01 s.", "plain": "plain done"}
    assert left[0].text == "done"


@pytest.mark.asyncio
@pytest.mark.parametrize("swallows", [False, True])
@EACH_FACE
async def test_a_tool_that_raises_cancelled_error_has_failed(face: str, swallows: bool) -> None:
    """A tool that awaits a cancelled future fails, and the run continues; also after the tool swallowed a cancellation."""

    async def work() -> str:
        if swallows:
            await swallow_a_cancellation()
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return str(await future)

    left: list[Response] = []
    await consume(swarm_of("work"), Agent(functions=[work]), face, left)
    assert answers(left[0])["work"].startswith("Error: CancelledError")
    assert left[0].text == "done"


@pytest.mark.asyncio
async def test_the_first_failure_of_a_group_leaves() -> None:
    """An error that a sibling raises while it is cancelled does not hide the first error."""

    def stop(failure: ToolFailure) -> str:
        raise failure.error

    async def first() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("first")

    async def second() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise KeyError("second")

    model = ScriptedModel([[call("first"), call("second")]])
    swarm = AsyncSwarm(client=model.client(), tool_error=stop)
    with pytest.raises(RunError, match="first"):
        await swarm.run(Agent(functions=[first, second]), "Hi")

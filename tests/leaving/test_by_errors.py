"""What leaves a run as itself: exit and interrupt, errors of hooks, cancellations that tools swallow or raise."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Response, RunError, ToolFailure, tool
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.leaving.run_scenes import UNKNOWN, USER, nothing_left_behind
from tests.support.run.ways_to_run import FACES, answers, consume, swarm_of


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("face", FACES)
async def test_exit_and_interrupt_leave_as_themselves(face: str, in_thread: bool, kind: type[BaseException]) -> None:
    """KeyboardInterrupt and SystemExit of a tool are not its failure: they leave, and its siblings are ended."""
    ended: list[str] = []

    async def sibling() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("sibling")
        return ""

    @tool(concurrent=True, thread=in_thread)
    def leave() -> str:
        raise kind("out")

    left: list[Response] = []
    async with nothing_left_behind():
        with pytest.raises(kind, match="out") as caught:
            await consume(swarm_of("sibling", "leave"), Agent(functions=[sibling, leave]), face, left)
        assert type(caught.value) is kind
        assert ended == ["sibling"]
        check_history([USER, *left[0].messages], allow_open=True)
        assert answers(left[0]) == {"sibling": UNKNOWN, "leave": UNKNOWN}


@pytest.mark.anyio
@pytest.mark.parametrize("face", FACES)
async def test_a_tool_error_hook_that_raises_ends_the_run(face: str) -> None:
    """What the hook raises ends the run as a RunError with the partial response; siblings are cancelled."""
    ended: list[str] = []

    async def sibling() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("sibling")
        return ""

    async def fail() -> str:
        raise ValueError("broken")

    def hook(failure: ToolFailure) -> str:
        raise LookupError("no more")

    left: list[Response] = []
    async with nothing_left_behind():
        with pytest.raises(RunError, match="no more") as caught:
            await consume(swarm_of("sibling", "fail", tool_error=hook), Agent(functions=[sibling, fail]), face, left)
        assert isinstance(caught.value.__cause__, LookupError)
        assert ended == ["sibling"]
        assert caught.value.response is not None
        assert caught.value.response.stop == "error"
        check_history([USER, *caught.value.response.messages], allow_open=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("face", FACES)
async def test_the_hook_also_ends_a_run_of_a_task_that_was_once_cancelled(face: str) -> None:
    """A task may have swallowed a cancellation (a failed asyncio.TaskGroup does on 3.11): its runs are as any other."""

    async def fail() -> str:
        raise ValueError("broken")

    def hook(failure: ToolFailure) -> str:
        raise LookupError("no more")

    swallow_a_cancellation()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    with pytest.raises(RunError, match="no more"):
        await consume(swarm_of("fail", tool_error=hook), Agent(functions=[fail]), face, [])


def swallow_a_cancellation() -> None:
    """Ask for the cancellation of the calling task."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


@pytest.mark.asyncio
@pytest.mark.parametrize("face", FACES)
async def test_a_run_of_a_task_that_was_once_cancelled_is_as_any_other(face: str) -> None:
    """Cleanup after a swallowed cancellation may run agents, with threads and with calls that time out."""

    @tool(timeout=0.01)
    async def slow() -> None:
        await anyio.sleep_forever()

    def plain() -> str:
        return "plain done"

    left: list[Response] = []
    swallow_a_cancellation()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    await consume(swarm_of("slow", "plain"), Agent(functions=[slow, plain]), face, left)
    assert answers(left[0]) == {"slow": "Error: slow timed out after 0.01 s.", "plain": "plain done"}
    assert left[0].text == "done"


@pytest.mark.asyncio
@pytest.mark.parametrize("face", FACES)
async def test_a_tool_that_raises_cancelled_error_has_failed(face: str) -> None:
    """Awaiting something that somebody else has cancelled is a failure of the tool, not the end of the run."""

    async def work() -> str:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return str(await future)

    left: list[Response] = []
    await consume(swarm_of("work"), Agent(functions=[work]), face, left)
    assert answers(left[0])["work"].startswith("Error: CancelledError")
    assert left[0].text == "done"


@pytest.mark.asyncio
@pytest.mark.parametrize("face", FACES)
async def test_a_tool_that_was_once_cancelled_may_raise_it_too(face: str) -> None:
    """The same where the tool's own task has swallowed a cancellation before."""

    async def work() -> str:
        swallow_a_cancellation()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        raise asyncio.CancelledError

    left: list[Response] = []
    await consume(swarm_of("work"), Agent(functions=[work]), face, left)
    assert answers(left[0])["work"].startswith("Error: CancelledError")
    assert left[0].text == "done"


@pytest.mark.asyncio
async def test_the_first_failure_of_a_group_is_the_one_that_leaves() -> None:
    """An error that a sibling raises while it is cancelled does not hide the error that was first."""

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

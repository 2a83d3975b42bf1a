"""What a maintainer's eyes found: the ends of loops, of dropped runs, and of groups."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, CompletionRequest, ConfigurationError, RunError, ToolFailure, tool
from aswarm.testing import Answer, ScriptedModel, call
from loopback import Reply, serve, sse

PROGRAM = """
import asyncio, sys
from openai import AsyncOpenAI
from aswarm import Agent, AsyncSwarm

async def main():
    swarm = AsyncSwarm(client=AsyncOpenAI(base_url=sys.argv[1], api_key="x"))
    kept = swarm.run(Agent(), "Hi", stream=True)
    async for event in kept:
        if event.get("content"):
            break
    if sys.argv[2] == "drop":
        del kept

asyncio.run(main())
print("clean")
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["drop", "keep"])
async def test_the_loop_ends_around_an_open_stream(how: str, tmp_path: Path) -> None:
    """A program that breaks out of a stream and ends says nothing on its way out, whether it dropped the stream or not."""
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")

    def flows(_: object) -> Reply:
        return sse(Answer("Hello " * 1000), cut=6, pause=0.01)

    async with serve(flows) as server:
        command = [sys.executable, "program.py", server.base_url, how]
        done = await anyio.run_process(command, cwd=tmp_path, stderr=subprocess.STDOUT)
    assert done.stdout.decode() == "clean\n"


class BadlyClosed:
    """A source that cannot be closed cleanly."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[dict[str, Any], None]:
        try:
            yield {"choices": [{"delta": {"content": "Hello"}}]}
        finally:
            raise OSError("cannot close")


@pytest.mark.anyio
async def test_a_dropped_run_that_cannot_be_closed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is left to be told, so it is logged; on trio it must not end the program."""

    async def read_a_little() -> None:
        async for _ in AsyncSwarm(client=BadlyClosed()).run(Agent(), "Hi", stream=True):
            break

    with caplog.at_level(logging.ERROR, logger="aswarm"):
        await read_a_little()
        with anyio.fail_after(5):
            while not caplog.records:
                await anyio.sleep(0.001)
    assert "dropped" in caplog.text


@pytest.mark.asyncio
async def test_cancelling_every_task_leaves_the_outcome_unknown() -> None:
    """Shutdown code cancels all tasks, in any order; a call that was cancelled is never recorded as failed."""
    begun = asyncio.Event()

    async def pay() -> str:
        begun.set()
        await asyncio.sleep(60)
        return "paid"

    for _ in range(10):
        begun.clear()
        model = ScriptedModel([[call("pay"), call("pay")]])
        task = asyncio.create_task(AsyncSwarm(client=model.client()).run(Agent(functions=[pay]), "Hi"))
        await begun.wait()
        for running in asyncio.all_tasks() - {asyncio.current_task()}:
            running.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        contents = {message["content"] for message in caught.value.response.messages[1:]}  # type: ignore[attr-defined]
        assert contents <= {"cancelled; its outcome is unknown"}


@pytest.mark.asyncio
async def test_the_first_failure_of_a_group_is_the_one_that_leaves() -> None:
    """What siblings raise while they are being cancelled does not hide why they were."""

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


@pytest.mark.parametrize("limiter", [asyncio.Semaphore(2), 3])
def test_a_limiter_of_another_kind_is_refused(limiter: Any) -> None:
    """The likeliest mistake is told to the caller at once, not to the model at every call."""
    with pytest.raises(ConfigurationError, match=r"anyio\.CapacityLimiter"):
        tool(limiter=limiter)


@pytest.mark.asyncio
async def test_the_error_of_a_run_inside_keeps_its_own_response() -> None:
    """A run started by a hook fails with its own response; the outer run's error has the outer one's."""
    inner = AsyncSwarm(client=ScriptedModel([Answer("half", break_after=1)]).client())

    async def ask(_: ToolFailure) -> str:
        return (await inner.run(Agent(name="Inner"), "Help")).text

    def bad() -> None:
        raise ValueError("no")

    outer = AsyncSwarm(client=ScriptedModel([call("bad")]).client(), tool_error=ask)
    with pytest.raises(RunError) as caught:
        await outer.run(Agent(name="Outer", functions=[bad]), "Hi")
    cause = caught.value.__cause__
    assert isinstance(cause, RunError)
    assert cause.response is not None
    assert cause.response.messages == []
    assert caught.value.response is not None
    assert caught.value.response.messages[0]["sender"] == "Outer"

"""Runs that are left while their code runs or waits for its calls: nothing is lost, and nothing goes on."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Budget
from aswarm._run.call import ToolCall
from aswarm._run.handlers import outer_run
from aswarm._run.outcome import ToolOutcome
from aswarm.code import CodeLimits
from aswarm.code import _sandbox as sandbox_module
from aswarm.code._sandbox import Sandbox, Surroundings
from aswarm.code._snippet import Snippet
from aswarm.code._state import CodeState
from aswarm.code._stubs import stubs_of
from aswarm.middleware import Handlers
from aswarm.testing import check_history, check_middleware
from tests.support.code.coded import USER, agent_of, result_of, swarm_of, told
from tests.support.leaving.run_scenes import nothing_left_behind, until

pytestmark = pytest.mark.anyio
FIXED = Surroundings("2026-01-02T03:04:05+00:00", "UTC", "seed")


async def cancelled(code: str, *functions: Any, when: Callable[[], object]) -> Any:
    """Cancel a run when the condition is true. Return its response."""
    swarm, agent = swarm_of(code), agent_of(*functions, limits=CodeLimits(seconds=60))
    kept: list[Any] = []

    async def run(scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await swarm.run(agent, "Go")
            except BaseException as error:
                kept.append(error.response)  # type: ignore[attr-defined]
                raise

    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(run, scope)
        await until(when)
        scope.cancel()
    check_history([USER, *kept[0].messages])
    return kept[0]


async def test_a_cancelled_run_stops_its_calls_and_lists_them() -> None:
    """The call that runs and the code around it have an unknown outcome."""
    started: list[int] = []

    async def work(number: int) -> int:
        started.append(number)
        await anyio.sleep(0 if number == 0 else 60)
        return number

    async with nothing_left_behind():
        response = await cancelled("await work(0)\nawait work(1)\nawait work(2)", work, when=lambda: len(started) == 2)
    assert started == [0, 1]
    assert told(response) == "cancelled; its outcome is unknown"
    assert [each.id for each in response.unknown_calls] == ["outer.1", "outer"]


async def test_a_cancelled_run_kills_the_worker_of_its_step() -> None:
    """Code that computes for a minute ends at once, and the next code gets another worker."""
    asked: list[float] = []

    async def ready() -> None:
        asked.append(time.monotonic())

    async with nothing_left_behind():
        await cancelled(
            "await ready()\nwhile True:\n    pass", ready, when=lambda: asked and time.monotonic() > asked[0] + 0.3
        )
    assert time.monotonic() - asked[0] < 20
    assert await result_of("1 + 1", ready) == "2"


async def test_the_deadline_of_a_budget_cuts_code() -> None:
    async def work() -> None:
        await anyio.sleep(60)

    response = await swarm_of("await work()").run(agent_of(work), "Go", budget=Budget(seconds=1))
    assert response.spent == "seconds"
    assert told(response).startswith("cancelled; its outcome is unknown")


async def test_the_deadline_of_a_budget_cuts_code_that_computes() -> None:
    """The killed worker is not told as a crash."""

    async def work() -> None:
        raise AssertionError

    response = await swarm_of("while True:\n    pass").run(agent_of(work), "Go", budget=Budget(seconds=1))
    assert response.spent == "seconds"
    assert told(response).startswith("cancelled; its outcome is unknown")


async def test_a_crash_of_the_worker_is_a_failed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs nothing else: the calls of the code are named, and the next code runs."""

    async def work(number: int) -> int:
        return number

    real = Sandbox._resume

    def killing(self: Sandbox, session: Any, state: bytes, results: Any) -> Any:
        os.kill(session.worker_pid, 9)
        return real(self, session, state, results)

    monkeypatch.setattr(sandbox_module.Sandbox, "_resume", killing)
    text = await result_of("await work(1)\nawait work(2)", work)
    assert text == "the process of the code crashed, or used too much memory or time\n[calls that ran before: work (1)]"
    monkeypatch.undo()
    assert await result_of("await work(1)", work) == "1"


def through_code(handlers: Handlers) -> Handlers:
    """A middleware that makes each call from code."""
    run = outer_run(handlers.run)

    async def call_tool(call: ToolCall, context: dict[str, Any], started: Any) -> ToolOutcome:
        if call.tool is None or run is None or call.parent is not None:
            return await handlers.call_tool(call, context, started)
        inner: list[ToolOutcome] = []

        async def handle(made: ToolCall, context: dict[str, Any], _: Any) -> ToolOutcome:
            outcome = await handlers.call_tool(call, context, started)
            inner.append(outcome)
            return outcome

        stubs = stubs_of([call.tool])
        sandbox = Sandbox(stubs, CodeLimits(), FIXED, has_type_check=False)
        snippet = Snippet(call, run, handle, sandbox, CodeState(FIXED), {call.name: call.tool})
        await snippet.run(f"await {call.name}()")
        return dataclasses.replace(inner[0])

    return dataclasses.replace(handlers, call_tool=call_tool)


@pytest.mark.slow
def test_code_can_be_left_at_any_moment() -> None:
    """`check_middleware` leaves runs at each event, and cancels them at each place; here each call is made from code."""
    check_middleware(through_code)


FORK = """
import asyncio, os, sys
sys.path.insert(0, {root!r})
from tests.support.code.coded import result_of
from aswarm import ConfigurationError

async def work(number: int) -> int:
    return number

async def main(number):
    try:
        print(await result_of(f"await work({{number}})", work), flush=True)
    except ConfigurationError as error:
        print("refused", "spawn" in str(error), flush=True)

for number in {before}:
    asyncio.run(main(number))
child = os.fork()
if child == 0:
    asyncio.run(main(2))
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
asyncio.run(main(3))
"""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("before", "printed"), [([1], "1 refused True 3"), ([], "2 3")])
def test_a_forked_child_of_a_process_that_ran_code_is_refused(before: list[int], printed: str) -> None:
    """Monty would hang there. A child that is forked earlier works, and so does the parent in both cases."""
    program = FORK.format(root=str(Path(__file__).parents[2]), before=before)
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == printed.split(), done.stderr

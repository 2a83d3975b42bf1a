"""Runs that are left while their code runs or waits for its calls: no call is lost, and nothing continues."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from aswarm import Budget, ConfigurationError, Response
from aswarm.code import CodeLimits, _sandbox
from aswarm.testing import check_history
from tests.support.code.coded import USER, agent_of, cancelled, result_in, result_of, swarm_of, unknown
from tests.support.leaving.run_scenes import nothing_left_behind, settle


def workers() -> set[int]:
    """Return the processes of the sandbox."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread or the process has finished meanwhile
            for pid in (thread / "children").read_text().split():
                if b"monty" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.add(int(pid))
    return found


async def left(code: str, *functions: Any, when: Callable[[], object]) -> Response:
    """Cancel a run when the condition is true. Return its response."""
    async with nothing_left_behind():
        response = await cancelled(swarm_of(code), agent_of(*functions, limits=CodeLimits(seconds=60)), when)
    check_history([USER, *response.messages])
    return response


async def test_a_cancelled_run_stops_its_calls_and_lists_them() -> None:
    """The call that runs and the code around it have an unknown outcome."""
    started: list[int] = []

    async def work(number: int) -> int:
        started.append(number)
        await anyio.sleep(0 if number == 0 else 60)
        return number

    response = await left("await work(0)\nawait work(1)\nawait work(2)", work, when=lambda: len(started) == 2)
    assert started == [0, 1]
    assert result_in(response) == "cancelled; its outcome is unknown"
    assert unknown(response) == ["outer.1", "outer"]


CODE = """
async def both(number):
    return await work(number) + await work(10)

await asyncio.gather(both(1), both(2))
await work(3)
"""


@pytest.mark.parametrize("events", range(1, 24))
async def test_code_can_be_left_at_each_event(events: int) -> None:
    """Each call that has started has a result or an unknown outcome, and nothing continues."""
    started: list[int] = []

    async def work(number: int) -> int:
        started.append(number)
        await anyio.lowlevel.checkpoint()
        return number

    count = 0
    async with nothing_left_behind(), swarm_of(CODE).stream(agent_of(work), "Go") as run:
        async for _ in run:
            count += 1
            if count == events:
                break
    calls = len(started)
    await settle()
    response = run.response
    check_history([USER, *response.messages], allow_open=True)
    assert len(started) == calls
    assert (response.stop, bool(response.unknown_calls)) in [
        ("answer", False),
        ("cancelled", False),
        ("cancelled", True),
    ]
    assert not calls or response.stop == "answer" or response.unknown_calls or result_in(response) == "3"


@pytest.mark.slow
@pytest.mark.parametrize("step", range(30))
async def test_code_can_be_cancelled_at_each_step_of_the_event_loop(step: int) -> None:
    """The run ends soon, with a valid history."""

    async def work(number: int) -> int:
        await anyio.lowlevel.checkpoint()
        return number

    steps = 0

    def is_time() -> bool:
        nonlocal steps
        steps += 1
        return steps > step

    async with nothing_left_behind():
        response = await cancelled(swarm_of(CODE), agent_of(work), is_time)
    check_history([USER, *response.messages], allow_open=True)


async def test_a_cancelled_run_kills_the_worker_of_its_step() -> None:
    """Code that computes for a minute ends at once, and the next code gets another worker."""
    asked: list[float] = []

    async def ready() -> None:
        asked.append(time.monotonic())

    code = "await ready()\nwhile True:\n    pass"
    await left(code, ready, when=lambda: asked and time.monotonic() > asked[0] + 0.3)
    assert time.monotonic() - asked[0] < 20
    assert await result_of("1 + 1", ready) == "2"


@pytest.mark.parametrize("code", ["await work()", "while True:\n    pass"], ids=["a call", "the code computes"])
async def test_the_deadline_of_a_budget_cuts_code(code: str) -> None:
    """The outcome is unknown, and the end of the worker is not reported as a crash."""

    async def work() -> None:
        await anyio.sleep(60)

    response = await swarm_of(code).run(agent_of(work), "Go", budget=Budget(seconds=1))
    assert response.spent == "seconds"
    assert result_in(response).startswith("cancelled; its outcome is unknown")


async def test_a_crash_of_the_worker_is_a_failed_call() -> None:
    """The text names the calls of the code, and the next code runs."""

    async def kill() -> None:
        while True:
            for pid in workers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await anyio.sleep(0.05)

    async def work(number: int) -> int:
        if number == 1:
            group.start_soon(kill)
        return number

    async with anyio.create_task_group() as group:
        text = await result_of("await work(1)\nwhile True:\n    pass", work, limits=CodeLimits(seconds=60))
        group.cancel_scope.cancel()
    assert text == "the process of the code crashed, or used too much memory or time\n[calls that ran before: work (1)]"
    assert await result_of("await work(2)", work) == "2"


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


async def left_alone() -> None: ...


async def test_a_pool_of_another_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, without a fork. A forked child does not close the pool of its parent."""
    monkeypatch.setattr(_sandbox, "_used", [0])
    with pytest.raises(ConfigurationError, match="forked"):
        await result_of("1", left_alone)
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", at_exit.append)
    pool = _sandbox._make()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 0)
        at_exit[0]()
    with pool.checkout() as session:
        assert session.worker_pid
    at_exit[0]()

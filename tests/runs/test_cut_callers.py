"""Callers that are cancelled before or after each of their transactions: each run is executed, or was never started."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from tests.support.runs.cut_callers import Cut, How, PausedQueue, When, World, world
from tests.support.sampling import every

Operation = Callable[[], Awaitable[object]]
Prepare = Callable[[World, str], Awaitable[Operation]]
MOST = 40


async def start(it: World, conversation: str) -> Operation:
    return lambda: it.start(conversation)


async def start_new(it: World, conversation: str) -> Operation:
    return lambda: it.runs.start("Boss", "Hi!", user="ann")


async def answer(it: World, conversation: str) -> Operation:
    run = await it.waiting(conversation)
    (call_id,) = (each["id"] for each in (await run.result()).messages[-1]["tool_calls"])
    return lambda: run.answer({call_id: True})


async def replace(it: World, conversation: str) -> Operation:
    await it.slow(conversation)
    return lambda: it.start(conversation, while_running="replace")


async def cancel(it: World, conversation: str) -> Operation:
    run = await it.slow(conversation)
    return lambda: it.runs.cancel(run.id, user="ann")


async def cancel_waiting(it: World, conversation: str) -> Operation:
    run = await it.waiting(conversation)
    return lambda: it.runs.cancel(run.id, user="ann")


async def delete(it: World, conversation: str) -> Operation:
    await (await it.start(conversation)).wait()
    return lambda: it.runs.delete_conversation(conversation, user="ann")


async def release(it: World, conversation: str) -> Operation:
    run = await it.slow(conversation)

    async def take_and_release() -> None:
        if (attempt := await it.runs.take(run.id)) is not None:
            await attempt.release()

    return take_and_release


async def take(it: World, conversation: str) -> Operation:
    run = await it.slow(conversation)

    async def take_and_execute() -> None:
        if (attempt := await it.runs.take(run.id)) is not None:
            it.gate.set()
            await attempt.execute()

    return take_and_execute


OPERATIONS = [start, start_new, answer, replace, cancel, cancel_waiting, delete, take, release]
WAYS = [("asyncio", "scope"), ("asyncio", "task"), ("trio", "scope")]
PLACES = ["local memory", "local sqlite", "queue memory", "queue sqlite"]


async def cut_everywhere(it: World, prepare: Prepare, when: When, how: How) -> int:
    """Cut the operation at each of its transactions. Returns the number of cuts."""
    for number in range(1, MOST):
        it.gate = anyio.Event()
        operation, cut = await prepare(it, f"c{number}"), Cut(number, when, how)
        with anyio.fail_after(20):
            await cut.call(operation)
        await it.settle()
        if not cut.is_done:
            return number - 1
    raise AssertionError("the operation does not end")


@pytest.mark.parametrize(
    ("prepare", "when", "place", "anyio_backend", "how"), every(9, OPERATIONS, ["before", "after"], PLACES, WAYS)
)
async def test_a_caller_that_is_cut_leaves_no_run_that_nothing_executes(
    prepare: Prepare, when: When, place: str, how: How, tmp_path: Path
) -> None:
    """Each run that has a record ends, and the process can stop."""
    if place.startswith("local") and prepare in (take, release):
        pytest.skip("LocalRuns has no queue")
    async with world(place, tmp_path) as it:
        if isinstance(it.runs, PausedQueue):
            it.runs.go.set()
        assert await cut_everywhere(it, prepare, when, how) > 0


@pytest.mark.processes  # DBOS
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("prepare", "when", "how"), every(4, OPERATIONS, ["before", "after"], ["scope", "task"]))
async def test_a_caller_of_durable_runs_that_is_cut(prepare: Prepare, when: When, how: How, tmp_path: Path) -> None:
    """The same with the queue of DBOS."""
    pytest.importorskip("dbos", reason="durable runs need dbos")
    if prepare in (take, release):
        pytest.skip("only the engine takes durable runs")
    async with world("durable", tmp_path) as it:
        assert await cut_everywhere(it, prepare, when, how) > 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_execution_whose_task_is_cancelled_in_its_last_write_ends(when: When, tmp_path: Path) -> None:
    """A plain `task.cancel()` ignores shields; the end is written nevertheless, and the process can stop."""
    async with world("queue memory", tmp_path) as it:
        assert isinstance(it.runs, PausedQueue)
        it.runs.go.set()
        assert await cut_everywhere(it, take, when, "task") > 1

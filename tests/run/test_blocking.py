"""A function that blocks the event loop is logged by its name, once. Its neighbours are not."""

from __future__ import annotations

import gc
import logging
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Swarm, agent_tool, tool
from aswarm._run.execution import timed_steps
from aswarm._runtime import seams
from aswarm.code import code_tool
from aswarm.extensions import tools_of
from aswarm.testing import ScriptedModel, call
from aswarm.tools import Progress


class Clock:
    """A clock that only `block` moves forward."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def block(self, seconds: float = 1.25) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock() -> Iterator[Clock]:
    """The clock of the steps."""
    with seams.replaced({}, {"monotonic": (clock := Clock())}):
        yield clock


@pytest.fixture
def blocked(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The texts of the log about blocked loops."""
    caplog.set_level(logging.WARNING, "aswarm")
    return lambda: [text for record in caplog.records if "blocked" in (text := record.getMessage())]


async def run(*functions: Any) -> None:
    """Run two turns that call all the functions."""
    agent = Agent(name="Desk", functions=[*functions])
    calls = [call(name) for name in tools_of(agent)]
    async with AsyncSwarm(ScriptedModel([calls, calls, "done"])) as swarm:
        await swarm.run(agent, "Go")


async def test_the_log_names_the_function_and_no_neighbour(
    clock: Clock, blocked: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """The functions run together, twice. Short steps are no fault, whatever their sum is."""

    async def price() -> str:
        await anyio.sleep(0)
        clock.block()
        await anyio.sleep(0)
        return "7"

    async def polite() -> str:
        for _ in range(5):
            clock.block(0.9)
            await anyio.sleep(0)
        return "ok"

    async def waits() -> str:
        await anyio.sleep(0.01)
        return "ok"

    await run(tool(concurrent=True)(price), tool(concurrent=True)(polite), tool(concurrent=True)(waits))
    (text,) = blocked()
    assert text.startswith("tool price has blocked the event loop for 1.2 s: ")
    record: Any = next(record for record in caplog.records if record.getMessage() == text)
    assert record.agent == "Desk"
    assert record.run_id


async def test_each_kind_of_function_on_the_loop(clock: Clock, blocked: Callable[[], list[str]]) -> None:
    """Also one that fails, that ends its cleanup late, that yields progress, and that is plain and runs on the loop."""

    async def fails() -> str:
        clock.block()
        raise LookupError

    async def cleans() -> str:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            clock.block()
        raise AssertionError

    async def tells() -> AsyncGenerator[Any, None]:
        yield Progress("half")
        clock.block()
        yield "ok"

    @tool(thread=False)
    def looks(context_variables: dict[str, Any]) -> str:
        clock.block()
        return "ok"

    def plain() -> str:
        clock.block()
        return "ok"

    await run(fails, tells, looks, plain)
    began = anyio.Event()
    await run(tool(timeout=0.01)(cleans))
    began = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(run, cleans)
        await began.wait()
        group.cancel_scope.cancel()
    assert sorted(text.split()[1] for text in blocked()) == ["cleans", "cleans", "fails", "looks", "tells"]


@pytest.mark.parametrize("inside", ["agent", "code"])
async def test_a_function_in_another_run_or_in_code(
    inside: str, clock: Clock, blocked: Callable[[], list[str]]
) -> None:
    """The log names the function, and not the agent or the code around it."""

    async def price() -> str:
        clock.block()
        return "7"

    outer = agent_tool(Agent(name="Prices", functions=[price]), name="ask") if inside == "agent" else code_tool(price)
    calls = (
        [call("ask", request="?"), call("price"), "1"]
        if inside == "agent"
        else [call("run_code", code="await price()")]
    )
    async with AsyncSwarm(ScriptedModel([*calls, "done"])) as swarm:
        assert (await swarm.run(Agent(functions=[outer]), "Go")).text == "done"
    assert [text.split()[1] for text in blocked()] == ["price"]


def test_a_cancelled_function_leaves_no_reference_cycle() -> None:
    """The exception is thrown into the function, and does not refer to itself through the frame that it has passed."""

    class Cancelled(Exception):
        pass

    @types.coroutine
    def sleeps() -> Generator[None, None, None]:
        yield

    async def wait() -> None:
        await sleeps()

    step: Any = timed_steps(wait(), None, "")  # type: ignore[arg-type]
    step.send(None)
    gone = weakref.ref(error := Cancelled())
    gc.disable()
    try:
        with suppress(Cancelled):
            step.throw(error)
        del error
        assert gone() is None
    finally:
        gc.enable()


def test_the_async_function_of_a_swarm(clock: Clock, blocked: Callable[[], list[str]]) -> None:
    """An async function blocks all users of a `Swarm`, a plain function only its caller."""

    async def price() -> str:
        clock.block()
        return "7"

    def plain() -> str:
        clock.block()
        return "ok"

    Swarm(ScriptedModel([[call("plain"), call("price")], "done"])).run(Agent(functions=[plain, price]), "Where?")
    assert [text.split()[1] for text in blocked()] == ["price"]

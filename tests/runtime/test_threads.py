"""Plain functions run in bounded worker threads: the event loop never stalls, nothing deadlocks, nothing is interrupted."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from aswarm import Agent, AsyncSwarm, tool
from aswarm._runtime.threads import FunctionRunner
from aswarm.testing import ScriptedModel, call
from tests.support.run.one_turn import contents
from tests.support.run.one_turn import run_turn as run_quick_turn

run_turn = functools.partial(run_quick_turn, seconds=20)  # threads may have to wait for a processor


class Crowd:
    """Counts the threads that are inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0

    def visit(self, seconds: float = 0.005) -> str:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
        time.sleep(seconds)
        with self._lock:
            self._inside -= 1
        return "ok"


@pytest.mark.parametrize("where", ["tool", "instructions"])
async def test_plain_functions_do_not_stall_the_loop(where: str) -> None:
    """A task of the same loop runs on while a plain function blocks: the function itself waits for that task."""
    release, ticks = threading.Event(), 0

    def block(*_: object) -> str:
        return "free" if release.wait(120) else "stalled"

    def tool_that_blocks() -> str:
        return block()

    async def tick() -> None:
        nonlocal ticks
        for ticks in range(20):  # noqa: B007 - the last value is looked at
            await anyio.sleep(0.001)
        release.set()

    model = ScriptedModel([call("tool_that_blocks"), "Done"] if where == "tool" else ["Done"])
    agent = Agent(functions=[tool_that_blocks]) if where == "tool" else Agent(instructions=block)
    swarm = AsyncSwarm(client=model.client())
    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await swarm.run(agent, "Go")
    assert ticks == 19
    assert "free" in {str(message["content"]) for message in model.requests[-1].messages}


async def test_thread_false_runs_on_the_loop() -> None:
    """`@tool(thread=False)` calls the plain function in the event loop's own thread; without it, in another."""
    threads: dict[str, int] = {}

    @tool(thread=False)
    def here() -> str:
        threads["here"] = threading.get_ident()
        return "ok"

    def there() -> str:
        threads["there"] = threading.get_ident()
        return "ok"

    await run_turn([here, there], [call("here"), call("there")])
    assert threads["here"] == threading.get_ident() != threads["there"]


async def test_worker_threads_are_bounded_per_swarm() -> None:
    """However many runs a swarm has, at most `max_threads` plain functions run at once."""
    crowd = Crowd()

    def visit() -> str:
        return crowd.visit()

    def instructions() -> str:
        return crowd.visit()

    swarm = AsyncSwarm(client=ScriptedModel(_call_then_answer("visit")).client(), max_threads=3)
    agent = Agent(functions=[visit], instructions=instructions)
    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            for _ in range(24):
                group.start_soon(swarm.run, agent, "Go")
    assert 2 <= crowd.most <= 3


def _call_then_answer(*names: str) -> Any:
    return lambda request: "Done" if request.messages[-1]["role"] == "tool" else [call(name) for name in names]


async def test_a_limiter_of_ones_own() -> None:
    """Anything with the two methods of a `Limiter` will do, hashable and weakly referable or not."""
    log: list[str] = []

    class Logged:
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

        async def acquire_on_behalf_of(self, borrower: object) -> None:
            log.append("in")

        def release_on_behalf_of(self, borrower: object) -> None:
            log.append("out")

    @tool(limiter=Logged())
    async def work() -> str:
        return "ok"

    assert contents(await run_turn([work], [call("work")])) == ["ok"]
    assert log == ["in", "out"]


async def test_a_limiter_is_shared_by_tools_of_both_kinds() -> None:
    """One limiter given to an async tool and to a plain function bounds them together."""
    limiter, crowd = anyio.CapacityLimiter(1), Crowd()

    @tool(limiter=limiter)
    async def slow() -> str:
        return await anyio.to_thread.run_sync(crowd.visit)

    @tool(limiter=limiter)
    def plain() -> str:
        return crowd.visit()

    swarm = AsyncSwarm(client=ScriptedModel(_call_then_answer("slow", "slow", "plain")).client())
    with anyio.fail_after(120):
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(swarm.run, Agent(functions=[slow, plain]), "Go")
    assert crowd.most == 1


async def test_a_tool_may_call_itself_through_a_nested_run() -> None:
    """A tool with a limiter that runs an agent with the same tool is another borrower, not the same one twice."""

    @tool(limiter=anyio.CapacityLimiter(2))
    async def nest(depth: int) -> str:
        if depth == 0:
            return "bottom"
        inner = AsyncSwarm(client=ScriptedModel([call("nest", depth=depth - 1), "inner"]).client())
        response = await inner.run(Agent(functions=[nest]), "Go")
        return contents(response)[0]

    assert contents(await run_turn([nest], [call("nest", depth=1)])) == ["bottom"]


@pytest.mark.parametrize("way", ["async tool", "from a thread", "instructions"])
async def test_nested_runs_never_wait_for_the_threads_around_them(way: str) -> None:
    """With one worker thread, runs inside tools inside runs still end, each of them using plain functions."""
    swarm = AsyncSwarm(client=ScriptedModel(_dive).client(), max_threads=1)

    def bottom() -> str:
        return "bottom"

    async def dive(depth: int) -> str:
        instructions: Any = f"depth {depth}"
        if way == "instructions" and depth:
            instructions = lambda: anyio.from_thread.run(dive, depth - 1)  # noqa: E731
        agent = Agent(functions=[deeper, deeper_from_thread, bottom], instructions=instructions)
        with anyio.fail_after(60):  # here, because cancelling from outside would wait for the thread
            return (await swarm.run(agent, f"{way} {depth}")).text

    async def deeper(depth: int) -> str:
        return await dive(depth)

    def deeper_from_thread(depth: int) -> str:
        return anyio.from_thread.run(dive, depth)

    async def from_the_top() -> None:
        answers.append(await dive(3))

    answers: list[str] = []
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(from_the_top)
    assert answers == ["bottom"] * 3


def _dive(request: Any) -> Any:
    last = request.messages[-1]
    if last["role"] == "tool":
        return last["content"]
    way, _, depth = last["content"].rpartition(" ")
    if depth == "0" or way == "instructions":
        return call("bottom")
    return call("deeper" if way == "async tool" else "deeper_from_thread", depth=int(depth) - 1)


async def test_context_vars_reach_the_thread() -> None:
    """A plain function sees the caller's context variables of `contextvars`, as any thread of anyio does."""
    import contextvars

    request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id")
    request_id.set("r-1")

    def look() -> str:
        return request_id.get()

    assert contents(await run_turn([look], [call("look")])) == ["r-1"]


async def test_a_function_whose_run_has_left_its_slot_is_not_called() -> None:
    """A function that is cancelled while it waits for a thread does not run, and its token is free again."""
    pool = FunctionRunner(1)
    ran: list[bool] = []
    slot = await pool.acquire()
    slot.release()
    assert slot._call(lambda: ran.append(True)) == []
    assert ran == []
    with anyio.fail_after(60):
        (await pool.acquire()).release()

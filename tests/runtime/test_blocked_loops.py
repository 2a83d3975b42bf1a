"""A function that blocks the event loop is logged once, by its name. Its neighbours are not."""

from __future__ import annotations

import gc
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, Output, Swarm, agent_tool, tool
from aswarm._runtime import blocked_loops, seams
from aswarm.code import code_tool
from aswarm.extensions import Handlers
from aswarm.guards import CheckedInput, guard_input
from aswarm.testing import ScriptedModel, call
from tests.support.serve.served import message_on, served

pytestmark = [pytest.mark.processes, pytest.mark.slow]
BLOCKED = 0.8


class Log(logging.Handler):
    """Collects the names of the logged functions, without their outer functions."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if " has blocked" in text:
            assert "to_thread.run_sync" in text
            assert "plain function" in text
            self.texts.append(text)
            self.names.append(text.split(" has blocked")[0].rpartition(".")[2])


log = Log()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shorten the second of the watch, and read its log."""
    monkeypatch.setattr(blocked_loops, "LIMIT", 0.4)
    blocked_loops._logged.clear()
    log.__init__()  # type: ignore[misc]
    blocked_loops.logger.addHandler(log)
    yield
    blocked_loops.logger.removeHandler(log)
    blocked_loops._logged.clear()


def block(name: str) -> None:
    """Block until this name is logged, or for some time if it is logged already."""
    if name in log.names:
        time.sleep(BLOCKED)
    end = time.monotonic() + 60
    while name not in log.names and time.monotonic() < end:
        time.sleep(0.02)


async def price(city: str) -> str:
    """Block the loop."""
    block("price")
    return city


async def healthy() -> str:
    """Wait for the time of the function that blocks."""
    for _ in range(20):
        await anyio.sleep(0.01)
    return "ok"


def plain() -> str:
    """Block a thread."""
    time.sleep(BLOCKED)
    return "ok"


@pytest.mark.anyio
async def test_every_async_function_of_the_user() -> None:
    """Instructions, a guard, a middleware, `approve`, a tool, a check of the answer, and `tool_error`."""

    async def instructions() -> str:
        block("instructions")
        return "Be short."

    async def guard(_: CheckedInput) -> None:
        block("guard")

    def middleware(handlers: Handlers) -> Handlers:
        block("middleware")
        return handlers

    async def approve(_: Mapping[str, Any], __: Mapping[str, Any]) -> bool:
        block("approve")
        return False

    @tool(approve=approve)
    async def book() -> str:
        """Fail."""
        raise ValueError

    async def on_error(_: object) -> str:
        block("on_error")
        return "failed"

    async def check(_: int) -> None:
        block("check")

    calls = [call("price", city="Oslo"), call("healthy"), call("plain"), call("book"), call("price", city="Rome")]
    agent = Agent(instructions=instructions, functions=[price, healthy, plain, book])
    model = ScriptedModel([calls, "1"])
    async with AsyncSwarm(model, middleware=[middleware, guard_input(guard)], tool_error=on_error) as swarm:
        response = await swarm.run(agent, "Where?", output=Output(int, check=check, mode="prompt"))
    assert response.output == 1
    assert sorted(log.names) == ["approve", "check", "guard", "instructions", "middleware", "on_error", "price"]


@pytest.mark.anyio
@pytest.mark.parametrize("inside", ["agent", "code"])
async def test_a_function_in_another_run_or_in_code(inside: str) -> None:
    """The name is the name of the function, and not of the agent or of the code around it."""
    inner = Agent(name="Prices", functions=[price])
    if inside == "agent":
        outer = Agent(functions=[agent_tool(inner, name="ask")])
        calls = [call("ask", request="?"), call("price", city="Oslo"), "1", "done"]
    else:
        outer = Agent(functions=[code_tool(price)])
        calls = [call("run_code", code='await price("Oslo")'), "done"]
    async with AsyncSwarm(ScriptedModel(calls)) as swarm:
        await swarm.run(outer, "Where?")
    assert log.names == ["price"]


@pytest.mark.asyncio
@pytest.mark.parametrize("wire", ["native", "openai"])
async def test_the_functions_of_a_service(wire: str) -> None:
    """`auth` and `context` block all clients, although no run has started."""

    async def auth(_: object) -> str:
        block("auth")
        return "ann"

    async def context(_: object) -> dict[str, Any]:
        block("context")
        return {}

    async with served(["Hi.", "Hi."], auth=auth, context=context, wires=["openai"]) as it:
        path, body = message_on(wire)
        assert (await it.ann.post(path, json=body)).is_success
    assert log.names == ["auth", "context"]


def test_the_async_function_of_a_swarm() -> None:
    """A plain function blocks only the caller of a `Swarm`, an async function blocks all of them."""
    calls = [call("plain"), call("price", city="Oslo")]
    Swarm(ScriptedModel([calls, "done"])).run(Agent(functions=[plain, price]), "Where?")
    assert log.names == ["price"]


@pytest.mark.anyio
async def test_a_decorated_function_has_its_place() -> None:
    """The text names the function that aswarm called, and the async function in it that does not await."""

    async def fetch() -> str:
        block("traced")
        return "ok"

    async def traced() -> str:
        """Block the loop."""
        return await fetch()

    async with AsyncSwarm(ScriptedModel([call("traced"), "done"])) as swarm:
        await swarm.run(Agent(functions=[traced]), "Where?")
    assert log.names == ["traced"]
    assert f"line {fetch.__code__.co_firstlineno + 1} of {fetch.__qualname__} in test_blocked_loops.py" in log.texts[0]


@pytest.mark.anyio
async def test_many_short_steps_are_no_fault() -> None:
    """Neither many functions in one step of the loop, nor a function that gives the control back between two looks."""
    _lease = seams.watch()
    watched = blocked_loops._Watch((0, None))

    def look(now: float) -> None:
        thread = threading.Thread(target=watched._look, args=(now, now))
        thread.start()
        thread.join()

    def many() -> list[Callable[..., Any]]:
        def make(index: int) -> Callable[..., Any]:
            async def short() -> str:
                look(index * 0.1)
                return "ok"

            short.__name__ = f"short_{index}"
            return short

        return [make(index) for index in range(30)]

    async def polite() -> str:
        for index in range(30):
            look(100 + index * 0.3)
            await anyio.sleep(0.01)
        return "ok"

    async def slow() -> str:
        look(200)
        look(200.3)
        look(200.5)
        return "ok"

    functions = many()
    together = [call(function.__name__) for function in functions]
    async with AsyncSwarm(ScriptedModel([together, call("polite"), "done"])) as swarm:
        await swarm.run(Agent(functions=[polite, *functions]), "Go")
    assert log.names == []
    async with AsyncSwarm(ScriptedModel([call("slow"), "done"])) as swarm:
        await swarm.run(Agent(functions=[slow]), "Go")
    assert log.names == ["slow"]


@pytest.mark.anyio
async def test_a_call_in_c_that_keeps_the_lock_of_the_interpreter() -> None:
    """The thread of the watch cannot run in the meantime, and still names the function."""
    size, seconds = 100_000, 0.0
    while seconds < BLOCKED:
        size *= 2
        start = time.perf_counter()
        _ = 3**size
        seconds = time.perf_counter() - start

    async def power() -> str:
        return str((3**size) % 10)

    for _ in range(10):  # a busy machine may not run the thread at all during the call
        async with AsyncSwarm(ScriptedModel([call("power"), "done"])) as swarm:
            await swarm.run(Agent(functions=[power]), "Go")
        if log.names:
            break
    assert log.names == ["power"]


@pytest.mark.anyio
async def test_a_slow_library_is_not_a_function_of_the_user() -> None:
    """The text names the function around it, because users cannot change the library."""
    namespace: dict[str, Any] = {"__name__": "openai._client", "block": block}
    exec("async def post():\n    block('around')\n    return 'ok'", namespace)

    async def around() -> str:
        return str(await namespace["post"]())

    async with AsyncSwarm(ScriptedModel([call("around"), "done"])) as swarm:
        await swarm.run(Agent(functions=[around]), "Go")
    assert log.names == ["around"]


def watchers() -> int:
    return sum(thread.name == "aswarm blocked loops" for thread in threading.enumerate())


@pytest.mark.anyio
async def test_the_thread_ends_after_the_last_function() -> None:
    """Plain functions start no thread, and a finished run keeps none."""

    async def ends() -> None:
        gc.collect()
        with anyio.fail_after(30):
            while watchers():
                await anyio.sleep(0.05)

    await ends()
    model = ScriptedModel([call("healthy"), "done"])
    async with AsyncSwarm(ScriptedModel([call("plain"), "done"])) as swarm:
        await swarm.run(Agent(functions=[plain]), "Go")
        assert watchers() == 0
    for _ in range(2):  # the second run starts the thread again
        async with AsyncSwarm(model) as swarm:
            await swarm.run(Agent(functions=[healthy]), "Go")
            assert watchers() == 1
        model = ScriptedModel([call("healthy"), "done"])
        await ends()
    assert not blocked_loops._watches


@pytest.mark.anyio
async def test_a_thread_that_ends_while_a_function_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either the thread continues, or another thread starts."""
    first = seams.watch()
    found = blocked_loops._watches[os.getpid(), blocked_loops.current_loop()]
    assert not found._has_ended()  # the function started before the thread could end
    assert blocked_loops._watches[found._key] is found
    monkeypatch.setattr(found, "add", lambda lease: found._has_ended())  # the thread ends before the function starts
    found._leases.clear()
    second = seams.watch()
    assert blocked_loops._watches[found._key] is not found
    del first, second


def test_a_process_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions run nevertheless."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def main() -> str:
        async with AsyncSwarm(ScriptedModel([call("healthy"), "done"])) as swarm:
            return json.dumps((await swarm.run(Agent(functions=[healthy]), "Go")).messages[-1]["content"])

    monkeypatch.setattr(seams, "start_thread", refuse)
    assert anyio.run(main) == '"done"'
    blocked_loops._watches.clear()

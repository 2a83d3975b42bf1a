"""One swarm on several event loops: one after another, in several threads at once, and on both backends."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import anyio
import pytest

from aswarm import Agent, AsyncSwarm, CompletionError, ConfigurationError, Swarm, tool
from aswarm.sources import CompletionRequest, HTTPSource
from aswarm.testing import ScriptedModel, check_history
from tests.support.providers.threaded_server import threaded_server
from tests.support.providers.transports import Transport, client_at


def completion(content: str | None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": content, **more}}]}


class Source:
    """Bound to no loop: calls every function once, then answers with their results."""

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        await anyio.sleep(0)
        messages = request.body["messages"]
        said = [message["content"] for message in messages if message["role"] == "tool"]
        names = [offered["function"]["name"] for offered in request.body.get("tools", ())]
        calls = [
            {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names
        ]
        yield completion(" ".join(said)) if said else completion(None, tool_calls=calls)


async def slow() -> str:
    await anyio.sleep(0.001)
    return "async"


def plain() -> str:
    return "plain"


async def several_runs(swarm: AsyncSwarm, agent: Agent, runs: int = 5) -> list[str]:
    texts: list[str] = []

    async def one() -> None:
        response = await swarm.run(agent, "Go")
        check_history(response.messages)
        texts.append(response.text)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(runs):
                group.start_soon(one)
    return texts


def in_threads(work: Callable[[], Coroutine[Any, Any, Any]], backends: list[str]) -> list[Any]:
    """The work on a loop of its own in each of several threads, all of them at once."""
    start = threading.Barrier(len(backends))

    def thread(backend: str) -> Any:
        start.wait(120)
        return anyio.run(work, backend=backend)

    with ThreadPoolExecutor(len(backends)) as pool:
        return list(pool.map(thread, backends))


def test_one_after_another() -> None:
    """A module-level swarm works in each of several `asyncio.run`s, and then in a `trio.run`."""
    swarm, agent = AsyncSwarm(client=Source(), max_threads=1), Agent(functions=[slow, plain])
    for backend in ("asyncio", "asyncio", "trio", "asyncio", "trio"):
        assert anyio.run(several_runs, swarm, agent, backend=backend) == ["async plain"] * 5


def test_several_threads_at_once() -> None:
    """Loops in several threads share a swarm and an agent, plain functions and few worker threads included."""
    swarm, agent = AsyncSwarm(client=Source(), max_threads=2), Agent(functions=[slow, plain])

    async def work() -> list[str]:
        return await several_runs(swarm, agent, 20)

    assert in_threads(work, ["asyncio", "trio", "asyncio", "asyncio"]) == [["async plain"] * 20] * 4


@pytest.mark.parametrize("backends", [["asyncio"] * 3, ["asyncio", "trio"]], ids=repr)
def test_a_limiter_on_several_loops_at_once(backends: list[str]) -> None:
    """A tool with a limiter, made at module level as decorators are, works on every loop at once; no run hangs."""
    inside: dict[int, int] = {}
    most: dict[int, int] = {}

    @tool(limiter=anyio.CapacityLimiter(1))
    async def one_at_a_time() -> str:
        loop = threading.get_ident()
        inside[loop] = inside.get(loop, 0) + 1
        most[loop] = max(most.get(loop, 0), inside[loop])
        await anyio.sleep(0.002)
        inside[loop] -= 1
        return "ok"

    swarm, agent = AsyncSwarm(client=Source()), Agent(functions=[one_at_a_time])

    async def work() -> list[str]:
        return await several_runs(swarm, agent, 10)

    assert in_threads(work, backends) == [["ok"] * 10] * len(backends)
    assert set(most.values()) == {1}


def is_closed(client: Any) -> bool:
    return not client._connections._values if isinstance(client, HTTPSource) else client.is_closed()


each_transport = pytest.mark.parametrize("transport", ["httpx", "aiohttp", "direct"])


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of `AsyncOpenAI()`: a key, and the address of a server that keeps its connections."""
    monkeypatch.setenv("OPENAI_API_KEY", "from the environment")
    with threaded_server(lambda it, _: (200, json.dumps(completion(it.headers["authorization"])).encode())) as url:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        yield


@each_transport
@pytest.mark.usefixtures("environment")
def test_an_own_client_for_each_loop(transport: Transport) -> None:
    """Without a client each loop gets one from the environment, made on first use and closed by `aclose()`."""
    swarm = AsyncSwarm(transport=transport)
    clients: list[Any] = []

    async def work() -> None:
        async with swarm:
            first = await swarm.run(Agent(), "Hi")
            second = await swarm.run(Agent(), "Hi")
            clients.append(swarm.client)
            assert swarm.client is clients[-1]
            assert not is_closed(clients[-1])
        assert is_closed(clients[-1])
        assert {first.text, second.text} == {"Bearer from the environment"}

    asyncio.run(work())
    asyncio.run(work())
    in_threads(work, ["asyncio", "asyncio"])
    assert len({id(client) for client in clients}) == 4


@each_transport
@pytest.mark.usefixtures("environment")
def test_a_swarm_that_is_closed_refuses_until_it_is_entered_again(transport: Transport) -> None:
    """A run after `aclose()` would open a client that nobody closes. `aclose()` twice is fine."""

    async def work() -> None:
        swarm = AsyncSwarm(transport=transport)
        assert swarm.client is None  # reading it creates no client
        await swarm.run(Agent(), "Hi")
        first = swarm.client
        assert first is not None
        await swarm.aclose()
        await swarm.aclose()
        assert swarm.client is None
        with pytest.raises(ConfigurationError, match="this AsyncSwarm is closed"):
            await swarm.run(Agent(), "Hi")
        async with swarm:
            async with swarm:  # only the end of the last block closes the swarm
                assert (await swarm.run(Agent(), "Hi")).text == "Bearer from the environment"
            assert (await swarm.run(Agent(), "Hi")).text == "Bearer from the environment"
            assert swarm.client is not first

    asyncio.run(work())


@each_transport
@pytest.mark.usefixtures("environment")
def test_the_end_of_an_older_block_does_not_close_a_later_block(transport: Transport) -> None:
    """Two users share a swarm, and one of them has called `aclose()` in between."""

    async def work() -> None:
        swarm = AsyncSwarm(transport=transport)
        async with AsyncExitStack() as later:
            async with swarm:
                await swarm.aclose()
                await later.enter_async_context(swarm)
                client = swarm.client
            assert swarm.client is client is not None
            assert (await swarm.run(Agent(), "Hi")).text == "Bearer from the environment"
        assert swarm.client is None
        with pytest.raises(ConfigurationError, match="this AsyncSwarm is closed"):
            await swarm.run(Agent(), "Hi")

    asyncio.run(work())


@pytest.mark.usefixtures("environment")
def test_the_end_of_an_older_block_of_a_blocking_swarm() -> None:
    """`Swarm` has the same rule."""
    with ExitStack() as later:
        with (swarm := Swarm()):
            swarm.close()
            client = later.enter_context(swarm).client
        assert swarm.client is client
    with pytest.raises(ConfigurationError, match="this Swarm is closed"):
        swarm.run(Agent(), "Hi")


@each_transport
@pytest.mark.usefixtures("environment")
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:an (AsyncSwarm|HTTPSource) was not closed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_is_gone_takes_its_client_along(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long-lived swarm does not collect the clients and loops of every `asyncio.run` that forgot `aclose()`."""
    # A collected client of openai tries to close itself on the next loop. pytest would keep the log records of asyncio.
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)
    swarm = AsyncSwarm(transport=transport)
    loops: list[weakref.ref[Any]] = []

    async def work(swarm: AsyncSwarm) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await swarm.run(Agent(), "Hi")

    for _ in range(4):
        asyncio.run(work(swarm))
    gc.collect()
    gc.collect()  # on aiohttp the first collection only closes the clients
    left = len([loop for loop in loops if loop() is not None])
    del swarm
    gc.collect()
    gc.collect()  # inside this test, which expects warnings about open clients
    assert left <= 1


async def test_a_callers_client_is_never_closed() -> None:
    """A client that was passed in stays open after `aclose()` and after `async with`."""
    client = ScriptedModel(["one", "two"]).client()
    async with AsyncSwarm(client=client) as swarm:
        assert swarm.client is client
        await swarm.run(Agent(), "Hi")
    await swarm.aclose()
    assert not client.is_closed()
    assert (await swarm.run(Agent(), "Hi")).text == "two"


def test_making_a_swarm_needs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A swarm can be made at module level: without a key, without a loop, and a thousand times at little cost."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert AsyncSwarm().client is None
    assert len({id(swarm) for swarm in [AsyncSwarm() for _ in range(1000)]}) == 1000


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("transport", "first", "second"),
    [
        ("httpx", "asyncio", "asyncio"),
        ("httpx", "asyncio", "trio"),
        ("httpx", "trio", "asyncio"),
        ("aiohttp", "asyncio", "asyncio"),
    ],
)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_passed_client_in_two_loops_is_named_as_the_cause(
    transport: Any, first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the second event loop names the client, and the two remedies."""
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)
    swarms = [AsyncSwarm(client_at(os.environ["OPENAI_BASE_URL"], transport))]

    async def work() -> str:
        try:
            return (await swarms[0].run(Agent(), "Hi")).text
        except CompletionError as error:
            return f"retryable={error.retryable}: {error}"

    assert anyio.run(work, backend=first) == "Bearer k"
    text = anyio.run(work, backend=second)
    assert text.startswith("retryable=False")
    assert "this client has connections of another event loop" in text
    assert "create a client in each event loop" in text
    assert "AsyncSwarm() without a client" in text
    swarms.clear()
    gc.collect()
    gc.collect()  # inside this test, which expects warnings about open clients


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("transport", ["auto", "direct"])
def test_a_swarm_without_a_key_cannot_be_entered(transport: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a service fails at its start. A swarm with a client or a source of its own needs no key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    async def work() -> None:
        with pytest.raises(ConfigurationError, match="no client: set OPENAI_API_KEY"):
            async with AsyncSwarm(transport=transport):
                pytest.fail("the block was entered")
        async with AsyncSwarm(Source()) as swarm:
            await swarm.run(Agent(), "Hi")

    anyio.run(work, backend=backend)


@pytest.mark.parametrize("variable", [None, "OPENAI_ADMIN_KEY"])
def test_a_blocking_swarm_without_a_key_cannot_be_entered(
    variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin key is none: it is not for completions."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "k")
    with pytest.raises(ConfigurationError, match="no client: set OPENAI_API_KEY"), Swarm():
        pytest.fail("the block was entered")
    with Swarm(Source()) as swarm:
        assert swarm.run(Agent(), "Hi").stop == "answer"

"""`AsyncSwarm(transport=...)`: the client that a swarm makes, on real sockets."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.abc
import openai
import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError, TextDelta
from aswarm.testing import ScriptedAnswer, ScriptedModel
from tests.support.providers.loopback import LoopbackServer, read_request, serve, spoken, sse, whole
from tests.support.providers.transports import Transport, client_at, on_each_transport

MORE_THAN_AIOHTTPS_OWN_LIMIT = 130


@contextlib.asynccontextmanager
async def served(monkeypatch: pytest.MonkeyPatch, reply: Any) -> AsyncIterator[tuple[AsyncSwarm, LoopbackServer]]:
    async with serve(reply) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "x")
        async with AsyncSwarm(transport="aiohttp") as swarm:
            yield swarm, server


@pytest.mark.asyncio
async def test_a_run_is_answered(monkeypatch):
    """Whole, through the SDK's aiohttp transport."""
    async with served(monkeypatch, lambda _: whole(ScriptedAnswer("hello"))) as (swarm, server):
        response = await swarm.run(Agent(), "hi")
    assert response.text == "hello"
    assert server.requests[0]["messages"][-1] == {"role": "user", "content": "hi"}


@pytest.mark.asyncio
async def test_a_stream_is_read_piece_by_piece(monkeypatch):
    """As on httpx."""
    answer = sse(ScriptedAnswer("hello there"), cut=3)
    async with served(monkeypatch, lambda _: answer) as (swarm, _), swarm.stream(Agent(), "hi") as run:
        texts = [event.text async for event in run if isinstance(event, TextDelta)]
    assert texts == ["hel", "lo ", "the", "re"]


@pytest.mark.asyncio
async def test_more_runs_are_in_flight_than_aiohttp_allows_by_itself(monkeypatch):
    """No answer comes before all have asked: a pool with a limit would wait for ever."""
    everybody = anyio.Event()

    async with served(monkeypatch, lambda _: sse(ScriptedAnswer("hello"), end="stall")) as (swarm, server):

        async def read_one() -> None:
            async with swarm.stream(Agent(), "hi") as run:
                async for event in run:
                    if isinstance(event, TextDelta):
                        if server.open_now == MORE_THAN_AIOHTTPS_OWN_LIMIT:
                            everybody.set()
                        await everybody.wait()
                        return

        with anyio.fail_after(120):
            async with anyio.create_task_group() as group:
                for _ in range(MORE_THAN_AIOHTTPS_OWN_LIMIT):
                    group.start_soon(read_one)
    assert len(server.requests) == MORE_THAN_AIOHTTPS_OWN_LIMIT


@pytest.mark.asyncio
async def test_a_client_and_a_transport_exclude_each_other():
    """The client that was passed in has its own."""
    client = openai.AsyncOpenAI(api_key="x")
    transports: list[Transport] = ["httpx", "aiohttp", "direct"]
    for transport in transports:
        with pytest.raises(ConfigurationError, match="transport= is for the default client"):
            AsyncSwarm(client, transport=transport)
    assert AsyncSwarm(client, transport="auto").client is client


@pytest.mark.asyncio
async def test_an_unknown_transport_is_refused():
    """The error names the known transports."""
    with pytest.raises(ConfigurationError, match="must be 'auto', 'httpx', 'aiohttp' or 'direct', not 'curl'"):
        AsyncSwarm(transport="curl")  # type: ignore[arg-type]


@pytest.fixture
def without_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK puts a client that only raises in the place of a client that it cannot make."""

    def missing(**_: object) -> None:
        raise RuntimeError("To use the aiohttp client you must have installed the package with the `aiohttp` extra")

    monkeypatch.setattr(openai, "DefaultAioHttpClient", missing)


@pytest.mark.asyncio
@pytest.mark.usefixtures("without_aiohttp")
async def test_without_aiohttp_the_error_says_what_to_install() -> None:
    """`transport="aiohttp"` is never something else."""
    with pytest.raises(ConfigurationError, match='install the extra "aiohttp"'):
        await AsyncSwarm(transport="aiohttp").run(Agent(), "hi")


async def kind_of_client(transport: Transport = "auto") -> type[object]:
    async with AsyncSwarm(transport=transport) as swarm:
        kind: type[object] = type(swarm.client._client)
        return kind


def test_auto_is_aiohttp_on_asyncio_and_httpx_on_trio(monkeypatch: pytest.MonkeyPatch) -> None:
    """One swarm may be used on both."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    assert anyio.run(kind_of_client) is openai.DefaultAioHttpClient
    assert anyio.run(kind_of_client, "httpx") is not openai.DefaultAioHttpClient
    assert issubclass(anyio.run(kind_of_client, backend="trio"), openai.DefaultAsyncHttpxClient)


@pytest.mark.asyncio
@pytest.mark.usefixtures("without_aiohttp")
async def test_auto_is_httpx_without_aiohttp(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra may be absent."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    assert issubclass(await kind_of_client(), openai.DefaultAsyncHttpxClient)


def test_on_trio_the_error_says_so():
    """aiohttp is for asyncio."""
    with pytest.raises(ConfigurationError, match="on asyncio only"):
        anyio.run(AsyncSwarm(transport="aiohttp").run, Agent(), "hi", backend="trio")


FORGETS = """
import asyncio, gc
from aswarm import Agent, AsyncSwarm

async def drop():
    swarm = AsyncSwarm()
    async for event in swarm.run(Agent(), "Hi", stream=True):
        break
    await swarm.run(Agent(), "Hi")
    del swarm
    gc.collect()
    await asyncio.sleep(0.01)

async def keep():
    await kept.run(Agent(), "Hi")

kept = AsyncSwarm()
asyncio.run(drop())
asyncio.run(keep())
asyncio.run(keep())
print("clean")
"""


@pytest.mark.processes
@pytest.mark.asyncio
async def test_a_forgotten_aclose_prints_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of a swarm that is collected while its loop runs or afterwards, nor of one that lives until the end."""
    (tmp_path / "program.py").write_text(FORGETS, encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    async with serve_kept_open() as port:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
        done = await anyio.run_process([sys.executable, "program.py"], cwd=tmp_path, stderr=subprocess.STDOUT)
    assert done.stdout == b"clean\n"


@pytest.mark.processes
@pytest.mark.asyncio
async def test_a_direct_run_imports_no_openai(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a forgotten `aclose` nor the loops after the first print anything."""
    program = FORGETS.replace("AsyncSwarm()", 'AsyncSwarm(transport="direct")').replace(
        '"clean"', '"openai" in sys.modules'
    )
    (tmp_path / "program.py").write_text(f"import sys\n{program}", encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    async with serve_kept_open() as port:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
        done = await anyio.run_process([sys.executable, "program.py"], cwd=tmp_path, stderr=subprocess.STDOUT)
    assert done.stdout == b"False\n"


FORKS = """
import asyncio, gc, os
from aswarm import Agent, AsyncSwarm

async def ask(swarm):
    return (await swarm.run(Agent(), "Hi")).text

swarm = AsyncSwarm(transport="direct")
loop = asyncio.new_event_loop()
print("parent", loop.run_until_complete(ask(swarm)), flush=True)
if (child := os.fork()) == 0:
    async def ask_and_close():
        async with swarm:
            return await ask(swarm)

    print("child", asyncio.run(ask_and_close()), flush=True)
    del swarm
    gc.collect()
    os._exit(0)
print("child ended with", os.waitpid(child, 0)[1])
print("parent", loop.run_until_complete(ask(swarm)))
loop.run_until_complete(swarm.aclose())
loop.close()
"""


@pytest.mark.processes
@pytest.mark.asyncio
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
async def test_a_forked_child_has_connections_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end leaves the connection of the parent open, which is used again, and warns of nothing that is the parent's."""
    opened: list[int] = []
    (tmp_path / "program.py").write_text(FORKS, encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    async with serve_kept_open(opened) as port:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
        command = [sys.executable, "-W", "always::ResourceWarning", "program.py"]
        done = await anyio.run_process(command, cwd=tmp_path, stderr=subprocess.STDOUT)
    assert done.stdout.decode().splitlines() == ["parent hello", "child hello", "child ended with 0", "parent hello"]
    assert len(opened) == 2


@pytest.mark.asyncio
async def test_a_collected_client_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections too, with one warning, which Python hides by default."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    async with serve_kept_open() as port:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1")
        swarm = AsyncSwarm(transport="aiohttp")
        await swarm.run(Agent(), "hi")
        http_client = swarm.client._client
        with pytest.warns(ResourceWarning) as warned:  # noqa: PT031 - the collection warns
            del swarm
            gc.collect()
        assert [str(each.message).partition(":")[0] for each in warned] == ["an AsyncSwarm was not closed"]
        with anyio.fail_after(60):
            while not http_client.is_closed:
                await anyio.sleep(0)


@on_each_transport
async def test_a_connection_is_used_again_unless_the_server_has_closed_it(transport: Transport) -> None:
    """An idle connection that the server closes costs no failed request."""
    opened: list[int] = []
    async with (
        serve_kept_open(opened, answers=2) as port,
        client_at(f"http://127.0.0.1:{port}/v1", transport) as client,
    ):
        swarm = AsyncSwarm(client)
        for connections in (1, 1, 2, 2, 3):
            assert (await swarm.run(Agent(), "hi")).text == "hello"
            assert len(opened) == connections
            await anyio.sleep(0.01)  # until the client reads the end of the connection


@contextlib.asynccontextmanager
async def serve_kept_open(opened: list[int] | None = None, answers: int = 100) -> AsyncIterator[int]:
    """Answer "hello" so many times on each connection, and then close it without a word."""

    async def handle(stream: anyio.abc.SocketStream) -> None:
        if opened is not None:
            opened.append(1)
        async with stream:
            for _ in range(answers):
                try:
                    _, body = await read_request(stream)
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    return
                reply = spoken(ScriptedAnswer("hello"), body)
                content = b"".join(reply.pieces)
                head = (
                    f"HTTP/1.1 200 OK\r\ncontent-type: {reply.content_type}\r\ncontent-length: {len(content)}\r\n\r\n"
                )
                await stream.send(head.encode() + content)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, handle)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        group.cancel_scope.cancel()


async def test_a_closed_swarm_runs_nothing_until_it_is_entered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would make a client that nobody closes. A client of the caller is the caller's, and works on."""
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    swarm = AsyncSwarm()
    async with swarm:
        pass
    with pytest.raises(ConfigurationError, match="this AsyncSwarm is closed"):
        await swarm.run(Agent(), "Hi")
    with pytest.raises(ConfigurationError, match="this AsyncSwarm is closed"):
        async with swarm.stream(Agent(), "Hi") as run:
            await anext(run)
    async with swarm:
        assert swarm.client is not None
    async with AsyncSwarm(ScriptedModel(["Hello!"]).client()) as other:
        pass
    assert (await other.run(Agent(), "Hi")).text == "Hello!"


def test_a_swarm_is_closed_for_one_event_loop() -> None:
    """Each event loop has a client of its own."""
    swarm = AsyncSwarm(ScriptedModel(["One.", "Two."]).client())

    async def ask() -> str:
        async with swarm:
            return (await swarm.run(Agent(), "Hi")).text

    async def ask_in_an_open_loop() -> str:
        return (await swarm.run(Agent(), "Hi")).text

    assert [anyio.run(ask), anyio.run(ask_in_an_open_loop)] == ["One.", "Two."]


@pytest.mark.parametrize(("is_own", "left"), [(True, "open"), (False, "detached")])
def test_a_session_of_another_process_is_detached(is_own: bool, left: str) -> None:
    """A forked child does not close the connections of its parent."""
    on_aiohttp = pytest.importorskip("aswarm._providers.on_aiohttp")
    session: Any = SimpleNamespace(closed=False, state="open")
    session.detach = lambda: vars(session).update(closed=True, state="detached")
    assert on_aiohttp._forget(session, os.getpid() * is_own) == session.closed
    assert session.state == left

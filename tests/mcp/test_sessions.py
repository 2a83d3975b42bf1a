"""Sessions with servers: their opening and closing, the calls of a lost session, and nothing left afterwards."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_client_server_memory_streams

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, Swarm, current_call
from aswarm.mcp import MCPServer, _requests
from aswarm.testing import ScriptedCall, ScriptedModel, call
from tests.support.leaving.run_scenes import settle
from tests.support.mcp.mcp_servers import Tools, children, make_old_server, make_server, over_http, stdio
from tests.support.providers.loopback import Reply, serve
from tests.support.run.one_turn import contents
from tests.support.runtime.virtual_time import in_virtual_time, run_virtual
from tests.support.sampling import every, listed

pytestmark = pytest.mark.processes

BACKENDS = ("asyncio", "trio")


@pytest.fixture(autouse=True)
def no_children() -> Iterator[None]:
    """Fail a test that leaves a process of a server."""
    before = children()
    yield
    assert children() <= before


async def run(server: MCPServer, *turns: ScriptedCall | list[ScriptedCall]) -> list[Any]:
    """Make these calls in a run. Return the results for the model."""
    return contents(await respond(server, *turns))


async def respond(server: MCPServer, *turns: ScriptedCall | list[ScriptedCall]) -> Response:
    """Make these calls in a run."""
    async with AsyncSwarm(ScriptedModel([*turns, "Done."]).client()) as swarm:
        return await swarm.run(Agent(functions=[*server.functions]), "Go")


@pytest.mark.heavy
@pytest.mark.parametrize("seconds", [0, 0.01, 0.1])
async def test_opening_can_be_cancelled(journal: Path, seconds: float) -> None:
    """At whichever step, there is no error and no process is left."""
    with anyio.move_on_after(seconds):
        async with MCPServer(stdio(journal)):
            await anyio.sleep(0)


class Stubborn:
    """Connections to a server that end only when they are cancelled. `is_silent`: they never open."""

    def __init__(self, tools: Tools, *, is_silent: bool = False) -> None:
        self.open = 0
        self.ends: list[Any] = []
        self._server = make_server(tools)
        self._is_silent = is_silent

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        self.open += 1
        try:
            if self._is_silent:
                await anyio.sleep_forever()
            async with create_client_server_memory_streams() as (client, end), anyio.create_task_group() as group:
                group.start_soon(self._server.run, *end, self._server.create_initialization_options())
                self.ends.append(end[1])
                yield client
                await anyio.sleep_forever()
        finally:
            self.open -= 1


@in_virtual_time
async def test_leaving_does_not_wait_for_a_server_that_never_answers() -> None:
    """An open server has five seconds for its end, and a server that was never open has half a second."""
    for is_silent, seconds in ((True, 0.5), (False, 5)):
        stubborn, start = Stubborn(Tools(), is_silent=is_silent), anyio.current_time()
        with anyio.move_on_after(1):
            async with MCPServer(stubborn.connect):
                start = anyio.current_time() - 1
        assert anyio.current_time() - start == 1 + seconds
        assert stubborn.open == 0


def test_a_plain_cancellation_while_sessions_are_closed_leaves_none_of_them() -> None:
    """A call after the loss of a session is made once, in a new session; all sessions are closed at the same time."""

    async def main() -> None:
        tools = Tools()
        stubborn = Stubborn(tools)
        shop = MCPServer(stubborn.connect)
        await shop.__aenter__()
        await stubborn.ends[0].aclose()
        await settle()
        assert await run(shop, call("write", text="a")) == ["a"]
        assert ([name for name, _ in tools.calls], stubborn.open) == (["write"], 2)
        closing = asyncio.create_task(shop.__aexit__(None, None, None))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert stubborn.open == 0

    run_virtual("asyncio", main)


@pytest.mark.parametrize("anyio_backend", listed(BACKENDS, ["asyncio"]))
async def test_a_list_that_is_not_valid_is_a_configuration_error(journal: Path) -> None:
    """The functions stay as they were."""
    async with MCPServer(stdio(journal)) as shop:
        before = shop.functions
        await run(shop, call("spoil"))
        with pytest.raises(ConfigurationError, match="does not list its tools"):
            await shop.refresh()
        assert shop.functions is before


@pytest.mark.heavy
async def test_a_server_that_dies_in_a_call_is_started_again(journal: Path) -> None:
    """Only a repeatable call is made again; another call has an unknown outcome. The next call works."""
    async with MCPServer(stdio(journal)) as shop:
        response = await respond(shop, call("crash"), call("echo", text="back"), call("crash_once"))
    lost, back, repeated = contents(response)
    assert lost.startswith("The connection to the MCP server")
    assert lost.endswith("the outcome of the call is unknown.")
    assert [unknown.name for unknown in response.unknown_calls] == ["crash"]
    assert (back, repeated) == ("back", "done")
    assert journal.read_text().split() == ["crash", "echo", "crash_once", "crash_once"]


@pytest.mark.heavy
async def test_calls_that_lose_a_session_together_share_one_attempt_to_open_the_next(journal: Path) -> None:
    """Ten calls, one crash, and one new process. The session belongs to none of the calls: it outlives them."""
    made: list[bool] = []

    def connect() -> Any:
        with suppress(ConfigurationError):
            current_call()
            made.append(True)
            return stdio_client(stdio(journal))
        made.append(False)
        return stdio_client(stdio(journal))

    async with MCPServer(connect) as shop:
        calls = [call("crash_once"), *(call("echo", text=str(number)) for number in range(9))]
        assert await run(shop, calls) == ["done", *map(str, range(9))]
    assert made == [False, False]


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_server_that_hangs_is_a_timeout_and_replaced(journal: Path) -> None:
    """A process that answers nothing is ended; a slow process keeps its session."""
    async with MCPServer(stdio(journal), timeout=5) as shop:
        [pid] = children_of_servers()
        slow, after = await run(shop, call("slow"), call("echo", text="same"))
        assert (slow, after) == ("Error: slow did not answer within 5 s; its outcome is unknown.", "same")
        assert children_of_servers() == {pid}
        os.kill(int(pid), signal.SIGSTOP)
        hung, after = await run(shop, call("echo", text="a"), call("echo", text="b"))
        assert (hung, after) == ("Error: echo did not answer within 5 s; its outcome is unknown.", "b")
        assert children_of_servers() != {pid}


def children_of_servers() -> set[str]:
    """Return the processes of servers."""
    return {pid for pid in children() if b"mcp_stdio_server" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.parametrize("anyio_backend", listed(BACKENDS, ["trio"]))
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["true"], "the MCP server true cannot be opened: its program has stopped"),
        (["sleep", "60"], r"the MCP server sleep cannot be opened: no answer within 0.3 s"),
    ],
)
async def test_a_program_that_does_not_answer_is_a_configuration_error(command: list[str], text: str) -> None:
    """The error names the end of the program, or the time of waiting; then the program is ended."""
    timeout = 60 if command == ["true"] else 0.3
    with pytest.raises(ConfigurationError, match=text):
        async with MCPServer(StdioServerParameters(command=command[0], args=command[1:]), timeout=timeout):
            pass


@pytest.mark.parametrize(("make", "anyio_backend"), every(4, [make_server, make_old_server], BACKENDS, first=1))
async def test_a_server_over_http_may_be_restarted(make: Any) -> None:
    """While it is down, a call was not made; afterwards the next call works."""
    with over_http(lambda: make(Tools())) as (url, port):
        shop = MCPServer(url, timeout=60)
        await shop.__aenter__()
        assert await run(shop, call("echo", text="a")) == ["a"]
    try:
        [down, still_down] = await run(shop, call("write", text="b"), call("write", text="b"))
        assert "unhandled errors" not in down + still_down
        assert "was not called" in still_down
        tools = Tools()
        with over_http(lambda: make(tools), port):
            assert await run(shop, call("write", text="c")) == ["c"]
            assert [name for name, _ in tools.calls] == ["write"]
    finally:
        await shop.__aexit__(None, None, None)


async def test_an_old_server_asks_in_the_middle_of_a_call(caplog: pytest.LogCaptureFixture) -> None:
    """It cannot wait for another process: `on_input` answers, or the answer is to decline."""
    with over_http(lambda: make_old_server(Tools())) as (url, _):
        async with MCPServer(lambda: streamable_http_client(url), on_input=lambda *_: {"day": "Friday"}) as shop:
            assert await run(shop, call("book")) == ["accept {'hour': 9, 'day': 'Friday'}"]
        async with MCPServer(url) as shop:
            assert await run(shop, call("book")) == ["decline None"]
    assert "'Which day?'" in caplog.text
    assert "pass a function as MCPServer(on_input=...) to answer it" in caplog.text


STATUSES = [
    ("401 Unauthorized", r"HTTP status 401, it wants authentication; MCPServer\(url, headers=.* sends headers$"),
    ("404 Not Found", "HTTP status 404, there is no MCP server at this path$"),
    ("503 Service Unavailable", "HTTP status 503$"),
]


@pytest.mark.parametrize(("status", "text", "anyio_backend"), every(4, STATUSES, BACKENDS, first=1))
async def test_an_address_that_refuses_is_named_with_its_status(status: str, text: str) -> None:
    """The SDK has one text for all statuses."""
    async with serve(lambda _: Reply([b"no"], status=status, content_type="text/plain")) as server:
        with pytest.raises(ConfigurationError, match=f"cannot be opened: {text}"):
            async with MCPServer(f"http://127.0.0.1:{server.port}/mcp"):
                pass


async def test_headers_are_sent_with_each_request_to_a_url() -> None:
    """A server may need a key; a server of another kind has no headers."""
    async with serve(lambda _: Reply([b"no"], status="500 Error")) as server:
        with pytest.raises(ConfigurationError):
            async with MCPServer(f"http://127.0.0.1:{server.port}/mcp", headers={"Authorization": "Bearer 7"}):
                pass
    assert server.heads
    assert all("authorization: bearer 7" in head.lower() for head in server.heads)
    with pytest.raises(ConfigurationError, match="headers need a URL"):
        MCPServer(make_server(Tools()), headers={"Authorization": "Bearer 7"})


async def test_functions_work_only_while_their_server_is_open() -> None:
    """Before, afterwards and in another event loop, the mistake of the caller ends the run."""
    shop = MCPServer(make_server(Tools()))
    async with shop:
        with pytest.raises(ConfigurationError, match="is already open"):
            await shop.__aenter__()

        def elsewhere() -> None:
            anyio.run(run, shop, call("echo", text="a"))

        with pytest.raises(ConfigurationError, match="belongs to the event loop that opened it"):
            await anyio.to_thread.run_sync(elsewhere)
    with pytest.raises(ConfigurationError, match="is not open"):
        await run(shop, call("echo", text="a"))


@pytest.mark.heavy
def test_swarm_uses_a_server_without_await(journal: Path) -> None:
    """`with MCPServer(...)` opens it on the event loop that every Swarm of the process uses."""
    with MCPServer(stdio(journal)) as shop, Swarm(ScriptedModel([call("echo", text="a"), "Done."]).client()) as swarm:
        response = swarm.run(Agent(functions=[*shop.functions]), "Go")
    assert contents(response) == ["a"]


@pytest.mark.parametrize(("make", "anyio_backend"), every(4, [make_server, make_old_server], BACKENDS, first=1))
async def test_leaving_a_run_cancels_the_call_on_a_server_over_http(make: Any) -> None:
    """The server's function is cancelled, and the session still works."""
    tools = Tools()
    with over_http(lambda: make(tools)) as (url, _):
        async with MCPServer(url) as shop:
            with anyio.move_on_after(30) as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(run, shop, call("slow"))
                    while not tools.calls:
                        await anyio.sleep(0.01)
                    tasks.cancel_scope.cancel()
                while not tools.cancelled:
                    await anyio.sleep(0.01)
            assert not scope.cancelled_caught
            assert await run(shop, call("echo", text="a")) == ["a"]


async def test_a_call_while_the_server_is_closed() -> None:
    """A connection that is being closed opens no session. Without a run, a program may call a function itself."""
    async with MCPServer(make_server(Tools())) as shop:
        (echo,) = [function for function in shop.functions if function.__name__ == "echo"]
        assert await echo(text="a") == "a"
        await shop._opened().close()
        with pytest.raises(ConfigurationError, match="is closed"):
            await echo(text="a")


async def test_a_server_that_does_not_answer_the_check() -> None:
    """The check of a server after a timeout has its own time limit."""
    silent: Any = SimpleNamespace(session=SimpleNamespace(list_tools=anyio.sleep_forever))
    assert not await _requests._answers_requests(silent, 0.01)


def test_other_encodings_are_found() -> None:
    """The search for the encoding of lines leaves other names alone."""
    with pytest.raises(LookupError):
        codecs.lookup("no encoding")

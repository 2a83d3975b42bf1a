"""Sessions with servers: who opens and closes them, what a lost one means for a call, and what is left afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import anyio
import pytest
from mcp import MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED, HEADER_MISMATCH, REQUEST_TIMEOUT, ElicitRequestFormParams, ListToolsResult

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, Swarm
from aswarm._run.current_call import running
from aswarm.mcp import MCPServer, _session
from aswarm.mcp._http import NOT_RUN
from aswarm.mcp._outcomes import CallOutcome, outcome_of
from aswarm.mcp._session import Connection
from aswarm.testing import ScriptedCall, ScriptedModel, call
from tests.support.mcp.mcp_servers import Tools, make_old_server, make_server, over_http, stdio
from tests.support.providers.loopback import Reply, serve
from tests.support.runtime.virtual_time import in_virtual_time
from tests.support.sampling import every, listed

pytestmark = pytest.mark.processes

BACKENDS = ("asyncio", "trio")


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A file for what the server of another process was called with."""
    path = tmp_path / "calls.txt"
    path.touch()
    return path


@pytest.fixture(autouse=True)
def no_children() -> Iterator[None]:
    """Fails a test that leaves a process of a server."""
    before = children()
    yield
    assert children() <= before


def children() -> set[str]:
    """The processes that this one has started and not ended, but for those of pytest itself."""
    found: set[str] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            found.update((thread / "children").read_text().split())
    return found


async def run(server: MCPServer, *turns: ScriptedCall | list[ScriptedCall]) -> list[Any]:
    """What the model was told in a run that makes these calls."""
    return told(await respond(server, *turns))


async def respond(server: MCPServer, *turns: ScriptedCall | list[ScriptedCall]) -> Response:
    """A run that makes these calls."""
    async with AsyncSwarm(ScriptedModel([*turns, "Done."]).client()) as swarm:
        return await swarm.run(Agent(functions=[*server.functions]), "Go")


def told(response: Response) -> list[Any]:
    """What the model was told."""
    return [message["content"] for message in response.messages if message["role"] == "tool"]


@pytest.mark.heavy
@pytest.mark.anyio
async def test_one_task_opens_a_second_uses_and_a_third_closes(journal: Path) -> None:
    """Sessions belong to no task, and are closed in any order."""
    one, two = MCPServer(stdio(journal), prefix="one_"), MCPServer(make_server(Tools()), prefix="two_")
    for step in (one.__aenter__, two.__aenter__):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step)
    found: list[Any] = []

    async def use() -> None:
        found.extend(await run(one, call("one_echo", text="a")) + await run(two, call("two_echo", text="b")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
    assert found == ["a", "b"]
    for server in (one, two):  # first in, first out
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.__aexit__, None, None, None)


@pytest.mark.heavy
@pytest.mark.anyio
@pytest.mark.parametrize("seconds", [0, 0.01, 0.1])
async def test_opening_can_be_cancelled(journal: Path, seconds: float) -> None:
    """However far it is, no error comes out, and no process is left."""
    with anyio.move_on_after(seconds):
        async with MCPServer(stdio(journal)):
            await anyio.sleep(0)


class StubbornClient:
    """A client of a server without tools. It does not end by itself, and `is_silent` does not begin."""

    session = None

    def __init__(self, *, is_silent: bool = False) -> None:
        self.is_silent = is_silent

    async def __aenter__(self) -> Self:
        if self.is_silent:
            await anyio.sleep_forever()
        return self

    async def __aexit__(self, *_: object) -> None:
        await anyio.sleep_forever()

    async def list_tools(self, **_: object) -> ListToolsResult:
        """No tools."""
        return ListToolsResult(tools=[])


@pytest.mark.heavy
@in_virtual_time
async def test_leaving_does_not_wait_for_a_server_that_never_answers() -> None:
    """The time that an open server has for its end is not spent on one that was never open."""
    for is_silent, seconds in ((True, 0.5), (False, 5)):
        connection = Connection("shop", partial(cast("Any", StubbornClient), is_silent=is_silent), timeout=60)
        session = connection.session()
        with anyio.move_on_after(1):
            await session.opened()
        began = anyio.current_time()
        await connection.close()
        assert anyio.current_time() - began == seconds
        assert session.has_ended


@pytest.mark.heavy
@pytest.mark.asyncio
async def test_a_plain_cancellation_while_sessions_are_closed_leaves_none_of_them(
    monkeypatch: pytest.MonkeyPatch, nothing_left: list[Any]
) -> None:
    """All sessions are closed at the same time, and each of them to its end."""
    monkeypatch.setattr(_session, "_CLOSE_SECONDS", 0.1)
    connection = Connection("shop", cast("Any", StubbornClient), timeout=60)
    sessions = []
    for _ in range(2):
        sessions.append(connection.session())
        await sessions[-1].opened()
        connection.give_up(sessions[-1])
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert [session.has_ended for session in sessions] == [True, True]


@pytest.mark.anyio
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
@pytest.mark.asyncio
async def test_a_plain_cancellation_leaves_nothing(journal: Path, nothing_left: list[Any]) -> None:
    """`task.cancel()` of asyncio, which knows no shields, ends the process too."""

    async def hold() -> None:
        async with MCPServer(stdio(journal)):
            await asyncio.sleep(30)

    for seconds in (0.01, 0.5):
        task = asyncio.create_task(hold())
        await asyncio.sleep(seconds)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.heavy
@pytest.mark.anyio
async def test_a_server_that_dies_in_a_call_is_started_again(journal: Path) -> None:
    """A call that may have run is not made again: its outcome is unknown. One that may be repeated is. The next call works."""
    async with MCPServer(stdio(journal)) as shop:
        response = await respond(shop, call("crash"), call("echo", text="back"), call("crash_once"))
    lost, back, repeated = told(response)
    assert lost.startswith("The connection to the MCP server")
    assert lost.endswith("the outcome of the call is unknown.")
    assert [unknown.name for unknown in response.unknown_calls] == ["crash"]
    assert (back, repeated) == ("back", "done")
    assert journal.read_text().split() == ["crash", "echo", "crash_once", "crash_once"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", listed(BACKENDS, ["trio"]))
async def test_a_server_that_died_between_calls_loses_none(journal: Path) -> None:
    """The next call is made once, in a new process, also by a tool that must not be repeated."""
    async with MCPServer(stdio(journal)) as shop:
        [pid] = children_of_servers()
        os.kill(int(pid), signal.SIGKILL)
        connection = shop._connection
        assert connection is not None
        first = connection.session()
        with anyio.fail_after(120):
            while first.is_usable:
                await anyio.sleep(0.01)
        assert await run(shop, call("write", text="a")) == ["a"]
    assert first.has_ended
    assert journal.read_text().split() == ["write"]


@pytest.mark.heavy
@pytest.mark.anyio
async def test_calls_that_lose_a_session_together_share_one_attempt_to_open_the_next(journal: Path) -> None:
    """Ten calls, one crash, and one new process. The session belongs to none of the calls: it outlives them."""
    made = []

    def connect() -> Any:
        made.append(running())
        return stdio_client(stdio(journal))

    async with MCPServer(connect) as shop:
        calls = [call("crash_once"), *(call("echo", text=str(number)) for number in range(9))]
        assert await run(shop, calls) == ["done", *map(str, range(9))]
    assert made == [None, None]


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.asyncio
async def test_a_server_that_hangs_is_told_as_a_timeout_and_replaced(journal: Path) -> None:
    """A process that answers nothing at all is ended; one that is only slow keeps its session."""
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
    """The processes of servers."""
    return {pid for pid in children() if b"mcp_stdio_server" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.heavy
@pytest.mark.anyio
async def test_a_server_that_is_not_there_is_a_configuration_error() -> None:
    """Opening names the server and the reason; no group of exceptions, and no trace of the parts of the SDK."""
    for server in (StdioServerParameters(command="no-such-program-7"), "http://127.0.0.1:9/mcp"):
        with pytest.raises(ConfigurationError, match="cannot be opened: ") as caught:
            async with MCPServer(server):
                pass
        assert "unhandled errors" not in str(caught.value)


@pytest.mark.heavy
@pytest.mark.anyio
async def test_a_program_that_ends_at_once_is_a_configuration_error() -> None:
    """The error says so, and where to look."""
    with pytest.raises(ConfigurationError, match="the MCP server true cannot be opened: its program has stopped"):
        async with MCPServer(StdioServerParameters(command="true")):
            pass


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", listed(BACKENDS, ["trio"]))
async def test_a_program_that_does_not_answer_is_a_configuration_error() -> None:
    """Opening says how long it has waited, and the program is ended."""
    with pytest.raises(ConfigurationError, match=r"the MCP server sleep cannot be opened: no answer within 0.3 s"):
        async with MCPServer(StdioServerParameters(command="sleep", args=["60"]), timeout=0.3):
            pass


@pytest.mark.anyio
@pytest.mark.parametrize(("make", "anyio_backend"), every(4, [make_server, make_old_server], BACKENDS, first=1))
async def test_a_server_over_http_may_be_restarted(make: Any) -> None:
    """While it is down, a call is told that it was not made; afterwards the next call works, as if nothing had been."""
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


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", listed(BACKENDS, ["asyncio"]))
async def test_a_restart_that_no_call_has_noticed_is_no_failure() -> None:
    """A server that does not know the session has not run the call, so it is made in a new session."""
    with over_http(lambda: make_old_server(Tools())) as (url, port):
        shop = MCPServer(url, timeout=60)
        await shop.__aenter__()
    with over_http(lambda: make_old_server(Tools()), port):
        assert await run(shop, call("write", text="c")) == ["c"]
        await shop.__aexit__(None, None, None)


@pytest.mark.heavy
@pytest.mark.anyio
async def test_an_old_server_asks_in_the_middle_of_a_call(caplog: pytest.LogCaptureFixture) -> None:
    """It cannot wait for another process: `on_input` answers, or the answer is to decline."""
    with over_http(lambda: make_old_server(Tools())) as (url, _):
        async with MCPServer(lambda: streamable_http_client(url), on_input=lambda *_: {"day": "Friday"}) as shop:
            assert await run(shop, call("book")) == ["accept {'hour': 9, 'day': 'Friday'}"]
        async with MCPServer(url) as shop:
            assert await run(shop, call("book")) == ["decline None"]
    assert "'Which day?'" in caplog.text


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("status", "text", "anyio_backend"),
    every(
        4,
        [
            (
                "401 Unauthorized",
                r"HTTP status 401, it wants authentication; MCPServer\(url, headers=.* sends headers$",
            ),
            ("404 Not Found", "HTTP status 404, there is no MCP server at this path$"),
            ("503 Service Unavailable", "HTTP status 503$"),
        ],
        BACKENDS,
        first=1,
    ),
)
async def test_an_address_that_refuses_is_named_with_its_status(status: str, text: str) -> None:
    """The SDK has one text for all of them."""
    async with serve(lambda _: Reply([b"no"], status=status, content_type="text/plain")) as server:
        with pytest.raises(ConfigurationError, match=f"cannot be opened: {text}"):
            async with MCPServer(f"http://127.0.0.1:{server.port}/mcp"):
                pass


@pytest.mark.heavy
@pytest.mark.anyio
async def test_headers_are_sent_with_each_request_to_a_url() -> None:
    """A key for a server that wants one; a server of another kind has no headers."""
    async with serve(lambda _: Reply([b"no"], status="500 Error")) as server:
        with pytest.raises(ConfigurationError):
            async with MCPServer(f"http://127.0.0.1:{server.port}/mcp", headers={"Authorization": "Bearer 7"}):
                pass
    assert server.heads
    assert all("authorization: bearer 7" in head.lower() for head in server.heads)
    with pytest.raises(ConfigurationError, match="headers need a URL"):
        MCPServer(make_server(Tools()), headers={"Authorization": "Bearer 7"})


@pytest.mark.heavy
@pytest.mark.anyio
async def test_a_question_without_a_callback_is_declined(caplog: pytest.LogCaptureFixture) -> None:
    """The log says what was asked, and how to answer."""
    answer = await MCPServer("http://127.0.0.1:9/mcp")._answer_now(
        None, ElicitRequestFormParams(message="Which day?", requested_schema={"type": "object", "properties": {}})
    )
    assert answer.action == "decline"
    assert "pass a function as MCPServer(on_input=...) to answer it" in caplog.text


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("Invalid structured content"), CallOutcome.UNREADABLE),
        (MCPError(-32700, "Failed to parse JSON response: x"), CallOutcome.UNREADABLE),
        (MCPError(-32602, "no such tool"), CallOutcome.ANSWERED),
        (MCPError(CONNECTION_CLOSED, "Session terminated"), CallOutcome.LOST),
        (MCPError(-32600, "Session terminated"), CallOutcome.ANSWERED),
        (MCPError(HEADER_MISMATCH, "another tool"), CallOutcome.ANSWERED),
        (MCPError(-32600, NOT_RUN), CallOutcome.NOT_RUN),
        (MCPError(REQUEST_TIMEOUT, "no answer"), CallOutcome.TIMED_OUT),
        (MCPError(CONNECTION_CLOSED, "Connection closed"), CallOutcome.LOST),
        (MCPError(-32603, "Server returned an error response"), CallOutcome.LOST),
    ],
)
def test_what_an_error_says_about_a_call(error: Exception, outcome: CallOutcome) -> None:
    """Where it is not certain, the call may have run."""
    assert outcome_of(error) is outcome


@pytest.mark.heavy
@pytest.mark.anyio
async def test_functions_work_only_while_their_server_is_open() -> None:
    """Before, afterwards and in another event loop it is the caller's mistake, and ends the run."""
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
@pytest.mark.anyio
async def test_a_call_in_flight_does_not_outlive_the_server() -> None:
    """A server that is closed while a call runs opens no new session for it."""
    shop = MCPServer(make_server(Tools()))
    await shop.__aenter__()
    connection = shop._connection
    await shop.__aexit__(None, None, None)
    assert connection is not None
    with pytest.raises(ConfigurationError, match="is closed"):
        connection.session()


@pytest.mark.heavy
def test_swarm_uses_a_server_without_await(journal: Path) -> None:
    """`with MCPServer(...)` opens it on the event loop that every Swarm of the process uses."""
    with MCPServer(stdio(journal)) as shop, Swarm(ScriptedModel([call("echo", text="a"), "Done."]).client()) as swarm:
        response = swarm.run(Agent(functions=[*shop.functions]), "Go")
    assert told(response) == ["a"]


@pytest.mark.anyio
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

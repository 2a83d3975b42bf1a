"""A call on a server runs once, and a call that may have run is never reported as not made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import MCPError, StdioServerParameters
from mcp.server import ServerRequestContext
from mcp.types import CONNECTION_CLOSED, HEADER_MISMATCH, REQUEST_TIMEOUT, CallToolRequestParams

from aswarm import Agent, Approve, AsyncSwarm, Reply, Response
from aswarm.mcp import MCPServer
from aswarm.testing import ScriptedModel, call
from tests.support.mcp.mcp_servers import Tools, make_old_server, make_server, over_http, stdio
from tests.support.mcp.plain_http_server import PlainServer, error_body, served

BOOKED = "payment booked, but the database session expired"
# Texts of the SDKs too: any tool may send them.
TEXTS = (BOOKED, "Session terminated", "Session not found", "Bad Request: Missing session ID")
CODES = (-32000, -32001, -32600)
GONE = (404, "text/plain", b"gone")


async def ask(shop: MCPServer, *calls: Any) -> tuple[list[str], list[str]]:
    """Return the results for the model, and the names of the calls with an unknown outcome."""
    model = ScriptedModel([list(calls), "Done."])
    response: Response = await AsyncSwarm(model.client()).run(Agent(functions=list(shop.functions)), "Go")
    return answers(response), [each.name for each in response.unknown_calls]


async def ask_plain(server: PlainServer, name: str, seconds: float = 60) -> tuple[list[str], list[str]]:
    """Make this call on a server over HTTP."""
    with served(server) as url:
        async with MCPServer(url, timeout=seconds) as shop:
            return await ask(shop, call(name))


async def ask_tools(name: str, tools: Tools | None = None, **options: Any) -> tuple[list[str], list[str]]:
    """Make this call on a server in this process."""
    async with MCPServer(make_server(tools or Tools()), **options) as shop:
        return await ask(shop, call(name))


async def decide(tools: Tools, history: list[Any], *script: Any, **options: Any) -> Response:
    """Continue a run on a server in this process."""
    async with MCPServer(make_server(tools)) as shop:
        swarm = AsyncSwarm(ScriptedModel(script).client())
        return await swarm.run(Agent(functions=list(shop.functions)), history, **options)


@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.heavy)])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("make", [make_server, make_old_server], ids=["stateless", "with sessions"])
async def test_an_error_of_a_tool_about_a_session_is_no_lost_session(make: Any, code: int, text: str) -> None:
    """The tool has run, so it is not called again."""
    tools = Tools()

    async def write(_: ServerRequestContext[Any], __: CallToolRequestParams) -> Any:
        raise MCPError(code, text)

    tools._write = write  # type: ignore[attr-defined]
    with over_http(lambda: make(tools)) as (url, _):
        async with MCPServer(url) as shop:
            texts, _ = await ask(shop, call("write", text="a"))
    assert [name for name, _ in tools.calls] == ["write"]
    assert "was not called" not in texts[0]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "text", "unknown"),
    [
        (-32600, BOOKED, []),
        (-32700, "Failed to parse JSON response: x", ["fail"]),
        (-32602, "no such tool", []),
        (-32600, "Session terminated", []),
        (HEADER_MISMATCH, "another tool", []),
        (REQUEST_TIMEOUT, "no answer", ["fail"]),
        (CONNECTION_CLOSED, "Session terminated", ["fail"]),
        (-32603, "Server returned an error response", ["fail"]),
    ],
)
async def test_an_error_of_a_tool_over_stdio(journal: Path, code: int, text: str, unknown: list[str]) -> None:
    """The tool has run, so it is not called again; an error that the SDK itself may have made leaves its outcome unknown."""
    async with MCPServer(stdio(journal)) as shop:
        texts, names = await ask(shop, call("fail", code=code, message=text))
        assert await ask(shop, call("echo", text="next")) == (["next"], [])
    assert journal.read_text().split() == ["fail", "echo"]
    assert names == unknown
    assert "was not called" not in texts[0]


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [
        (404, "text/plain", b"gone"),
        (404, "application/json", error_body(-32600, "Session not found")),
        (404, "application/json", error_body(-32001, "Session not found")),
        (400, "application/json", error_body(-32000, "Bad Request: No valid session ID provided")),
    ],
)
async def test_a_server_that_does_not_know_the_session_is_called_again(status: int, kind: str, body: bytes) -> None:
    """The status of the response proves that the call has not run."""
    server = PlainServer((status, kind, body), counts_refusals=False)
    assert await ask_plain(server, "pay") == (["done"], [])
    assert server.calls == ["pay"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("status", "code"), [(200, -32000), (200, -32600), (400, -32600), (500, -32001), (409, -32000)]
)
async def test_other_responses_about_a_session_are_no_sign(status: int, code: int) -> None:
    """Another status does not prove it, so the call is not repeated."""
    server = PlainServer((status, "application/json", error_body(code, BOOKED)))
    # The SDK continues to wait after a 200 with the id of no request.
    texts, _ = await ask_plain(server, "pay", seconds=5 if status == 200 else 60)
    assert server.calls == ["pay"]
    assert "was not called" not in texts[0]


async def test_a_server_that_never_knows_the_session() -> None:
    """Two refusals are enough, and the model reads that the tool was not called."""
    server = PlainServer(GONE, GONE, counts_refusals=False)
    (text,), names = await ask_plain(server, "pay")
    assert text.endswith("pay was not called: the server does not know the session any more")
    assert (names, server.calls) == ([], [])


@pytest.mark.processes
async def test_a_server_that_dies_in_a_repeatable_call_and_does_not_return(journal: Path) -> None:
    """The call may have run, though it could not be repeated."""
    async with MCPServer(stdio(journal)) as shop:
        assert is_unknown(await ask(shop, call("crash_for_good")), "crash_for_good")
    assert journal.read_text().split() == ["crash_for_good"]
    server = PlainServer((200, "application/json", None))
    assert is_unknown(await ask_plain(server, "update"), "update")
    assert server.calls == ["update"]


async def test_a_block_that_is_left_during_a_repeatable_call() -> None:
    """The call was made and cannot be repeated, so it is neither open nor answered as not made."""

    class Slow(Tools):
        async def _update(self, *_: object) -> Any:
            await anyio.sleep(30)

    tools, reports = Slow(), list[tuple[list[str], list[str]]]()

    async def run() -> None:
        reports.append(await ask(shop, call("update")))

    with over_http(lambda: make_server(tools)) as (url, _):
        async with anyio.create_task_group() as group, MCPServer(url) as shop:
            group.start_soon(run)
            while not tools.calls:
                await anyio.sleep(0.01)
    assert is_unknown(reports[0], "update")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{"),
        ("application/json", b'{"jsonrpc": "2.0", "id": 99, "result"'),
        ("text/html", b"<p>OK</p>"),
    ],
)
async def test_a_result_that_cannot_be_read(kind: str, body: bytes) -> None:
    """The tool has run, and an invalid result does not mean that it failed."""
    server = PlainServer((200, kind, body))
    assert is_unknown(await ask_plain(server, "pay"), "pay")
    assert server.calls == ["pay"]


async def asked(tools: Tools) -> list[Any]:
    """Return the history of a run whose call has asked the user."""
    response = await decide(tools, [{"role": "user", "content": "Go"}], call("book", call_id="b"))
    assert response.stop == "waiting"
    history: list[Any] = json.loads(json.dumps([{"role": "user", "content": "Go"}, *response.messages]))
    return history


def is_unknown(report: tuple[list[str], list[str]], name: str) -> bool:
    """Return whether the model reads that the outcome of the only call is unknown, and the run lists the call."""
    (text,), names = report
    return text.endswith("the outcome of the call is unknown.") and names == [name]


def answers(response: Response) -> list[str]:
    return [each["content"] for each in response.messages if each["role"] == "tool" and "waiting" not in each]


async def test_a_call_that_has_asked_is_denied() -> None:
    """The server may have done something before its question, so the model does not read "not run"."""
    tools = Tools()
    response = await decide(tools, await asked(tools), "Done.", resume={"b": False})
    assert ([each.name for each in response.unknown_calls], len(tools.calls)) == (["book"], 1)
    assert not answers(response)[0].startswith("not run")


async def test_a_call_that_has_asked_is_closed_by_a_new_message() -> None:
    """Its outcome is unknown."""
    tools, sent = Tools(), list[Any]()
    history = [*await asked(tools), {"role": "user", "content": "Hello?"}]
    await decide(tools, history, lambda request: sent.extend(request.messages) or "Done.")
    results = [each["content"] for each in sent if each["role"] == "tool"]
    assert results == ["cancelled; its outcome is unknown"]


@pytest.mark.parametrize("resume", [Approve.all(), {"b": True}], ids=["all", "one"])
async def test_a_call_that_has_asked_is_approved_without_an_answer(resume: Any) -> None:
    """It asks again, and the server is not called a second time for that."""
    tools = Tools()
    history = await asked(tools)
    again = await decide(tools, history, resume=resume)
    assert ([each.reason for each in again.open_calls], len(tools.calls)) == (["Which day?"], 1)
    history += json.loads(json.dumps(again.messages))
    response = await decide(tools, history, "Done.", resume={"b": Reply({"when": {"day": "Monday"}})})
    assert (answers(response), len(tools.calls)) == (["order 7: accept {'hour': 9, 'day': 'Monday'}"], 2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("typed", "Invalid structured content returned by tool typed: 7 is not of type 'string'"),
        ("sample", "The MCP server shop asks for sampling/createMessage, which is not supported"),
        ("wait", "wait has no result: the MCP server shop has asked 10 times during this call"),
    ],
    ids=["its result does not fit its schema", "its question is not supported", "it asks without end"],
)
async def test_a_call_that_the_server_has_started_is_no_plain_error(name: str, text: str) -> None:
    """Its outcome is unknown, and the text has the reason."""
    report = await ask_tools(name)
    assert is_unknown(report, name)
    assert text in report[0][0]


async def test_a_callback_that_fails_to_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The server has run up to its question, so the failure of `on_input` does not mean that nothing has happened."""

    def fail(*_: object) -> None:
        raise LookupError("no calendar")

    assert is_unknown(await ask_tools("book", on_input=fail), "book")
    assert "LookupError: no calendar" in caplog.text


async def test_a_server_that_disappears_after_its_question() -> None:
    """The answer reaches a server that does not know the session, and then no server."""
    question = {"requests": {"when": {"message": "Which day?", "mode": "form"}}, "state": "order 7"}
    mark: dict[str, Any] = {"index": 0, "reason": "Which day?", "data": question}
    asking = {"id": "p", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": None, "tool_calls": [asking], "waiting": [mark]},
    ]
    server = PlainServer(GONE, GONE, counts_refusals=False)
    with served(server) as url:
        async with MCPServer(url) as shop:
            agent = Agent(functions=list(shop.functions))
            mark["version"] = next(each for each in shop.functions if each.name == "pay").version()
            swarm = AsyncSwarm(ScriptedModel(["Done."]).client())
            response = await swarm.run(agent, history, resume={"p": Reply({"when": None})})
    assert [each.name for each in response.unknown_calls] == ["pay"]
    assert "was not called" not in answers(response)[0]


_PROGRAM = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "p", "version": "1"}
        },
        "tools/list": {"tools": [{"name": "big", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "x" * SIZE + chr(228) + chr(128512)}]},
    }
    result = results.get(message["method"])
    body = {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
    if "id" in message:
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}, ensure_ascii=False)
        sys.stdout.buffer.write(text.encode() + b"\\n")
        sys.stdout.buffer.flush()
"""


@pytest.mark.processes
async def test_bytes_that_are_not_utf_8(journal: Path) -> None:
    """They are replaced, and the session continues."""
    async with MCPServer(stdio(journal)) as shop:
        assert await ask(shop, call("garble")) == (["done"], [])
        assert await ask(shop, call("echo", text="still there")) == (["still there"], [])


@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 65_530, 3_000_000])
async def test_a_result_of_one_line(size: int) -> None:
    """It is whole, in however many reads it comes, and in the encoding of the user."""
    program = _PROGRAM.replace("SIZE", f"{size}")
    for encoding, last in (({}, "\u00e4\U0001f600"), ({"encoding": "latin-1"}, "\u00c3\u00a4\u00f0\u009f\u0098\u0080")):
        parameters = StdioServerParameters(command=sys.executable, args=["-S", "-E", "-c", program], **encoding)
        async with MCPServer(parameters) as shop:
            (text,), names = await ask(shop, call("big"))
        assert (text, names) == ("x" * size + last, [])

"""A call on a server runs once, and a call that may have run is never reported as not made."""

from __future__ import annotations

import codecs
import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import MCPError, StdioServerParameters
from mcp.server import ServerRequestContext
from mcp.types import CallToolRequestParams

from aswarm import Agent, Answer, AsyncSwarm, Response
from aswarm.mcp import MCPServer
from aswarm.mcp._lines import readable
from aswarm.testing import ScriptedModel, call
from tests.support.mcp.mcp_servers import Tools, make_old_server, make_server, over_http, stdio
from tests.support.mcp.plain_http_server import PlainServer, error_body, served

pytestmark = pytest.mark.anyio
BOOKED = "payment booked, but the database session expired"
# Texts of the SDKs too: any tool may send them.
TEXTS = (BOOKED, "Session terminated", "Session not found", "Bad Request: Missing session ID")
CODES = (-32000, -32001, -32600)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """The file in which the program of a server writes its calls."""
    path = tmp_path / "journal"
    path.touch()
    return path


async def ask(shop: MCPServer, *calls: Any) -> tuple[list[str], list[str]]:
    """What the model is told, and the names of the calls whose outcome is unknown."""
    model = ScriptedModel([list(calls), "Done."])
    response: Response = await AsyncSwarm(model.client()).run(Agent(functions=list(shop.functions)), "Go")
    answers = [each["content"] for each in response.messages if each["role"] == "tool"]
    return answers, [each.name for each in response.unknown_calls]


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
            answers, _ = await ask(shop, call("write", text="a"))
    assert [name for name, _ in tools.calls] == ["write"]
    assert "was not called" not in answers[0]


@pytest.mark.processes
@pytest.mark.parametrize("code", CODES)
async def test_the_same_over_stdio(journal: Path, code: int) -> None:
    async with MCPServer(stdio(journal)) as shop:
        answers, _ = await ask(shop, call("fail", code=code, message=BOOKED))
    assert journal.read_text().split() == ["fail"]
    assert "was not called" not in answers[0]


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
    """The status of the response says that the call has not run."""
    server = PlainServer((status, kind, body), counts_refusals=False)
    with served(server) as url:
        async with MCPServer(url) as shop:
            assert await ask(shop, call("pay")) == (["done"], [])
    assert server.calls == ["pay"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("status", "code"), [(200, -32000), (200, -32600), (400, -32600), (500, -32001), (409, -32000)]
)
async def test_other_responses_about_a_session_are_no_sign(status: int, code: int) -> None:
    server = PlainServer((status, "application/json", error_body(code, BOOKED)))
    seconds = 5 if status == 200 else 60  # the SDK waits on after a 200 with the id of no request
    with served(server) as url:
        async with MCPServer(url, timeout=seconds) as shop:
            answers, _ = await ask(shop, call("pay"))
    assert server.calls == ["pay"]
    assert "was not called" not in answers[0]


async def test_a_server_that_never_knows_the_session() -> None:
    """Two refusals are enough, and the model is told that the tool was not called."""
    refusal = (404, "text/plain", b"gone")
    server = PlainServer(refusal, refusal, counts_refusals=False)
    with served(server) as url:
        async with MCPServer(url) as shop:
            answers, unknown = await ask(shop, call("pay"))
    assert (answers[0].partition("pay")[2], unknown, server.calls) == (
        " was not called: the server does not know the session any more",
        [],
        [],
    )


@pytest.mark.processes
async def test_a_server_that_dies_in_a_repeatable_call_and_stays_away(journal: Path) -> None:
    """The call may have run, though it could not be made again."""
    async with MCPServer(stdio(journal)) as shop:
        answers, unknown = await ask(shop, call("crash_for_good"))
    assert journal.read_text().split() == ["crash_for_good"]
    assert (answers[0].endswith("the outcome of the call is unknown."), unknown) == (True, ["crash_for_good"])


async def test_the_same_over_http() -> None:
    server = PlainServer((200, "application/json", None))
    with served(server) as url:
        async with MCPServer(url, timeout=60) as shop:
            answers, unknown = await ask(shop, call("update"))
    assert server.calls == ["update"]
    assert (answers[0].endswith("the outcome of the call is unknown."), unknown) == (True, ["update"])


async def test_a_block_that_is_left_during_a_repeatable_call() -> None:
    """The call was made and cannot be made again, so it is neither open nor answered as not made."""

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
    ((answers, unknown),) = reports
    assert (answers[0].endswith("the outcome of the call is unknown."), unknown) == (True, ["update"])


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"{"),
        ("application/json", b'{"jsonrpc": "2.0", "id": 99, "result"'),
        ("text/html", b"<p>OK</p>"),
    ],
)
async def test_a_result_that_cannot_be_read(kind: str, body: bytes) -> None:
    """The tool has run; that its result is not valid does not mean that it failed."""
    server = PlainServer((200, kind, body))
    with served(server) as url:
        async with MCPServer(url, timeout=60) as shop:
            answers, unknown = await ask(shop, call("pay"))
    assert server.calls == ["pay"]
    assert (answers[0].endswith("the outcome of the call is unknown."), unknown) == (True, ["pay"])


async def test_a_result_that_does_not_fit_its_own_schema() -> None:
    async with MCPServer(make_server(Tools())) as shop:
        answers, unknown = await ask(shop, call("typed"))
    assert "Invalid structured content returned by tool typed" in answers[0]
    assert (answers[0].endswith("the outcome of the call is unknown."), unknown) == (True, ["typed"])


# --- a call that has asked has run, up to its question -----------------------------------------------------------------


async def asked(tools: Tools) -> list[Any]:
    """The history of a run whose call has asked the user."""
    async with MCPServer(make_server(tools)) as shop:
        model = ScriptedModel([call("book", call_id="b")])
        response = await AsyncSwarm(model.client()).run(Agent(functions=list(shop.functions)), "Go")
    assert response.stop == "waiting"
    history: list[Any] = json.loads(json.dumps([{"role": "user", "content": "Go"}, *response.messages]))
    return history


def answers(response: Response) -> list[str]:
    return [each["content"] for each in response.messages if each["role"] == "tool" and "waiting" not in each]


async def test_a_call_that_has_asked_is_denied() -> None:
    """Nobody knows what the server did before its question, so the model does not read "not run"."""
    tools = Tools()
    history = await asked(tools)
    async with MCPServer(make_server(tools)) as shop:
        agent = Agent(functions=list(shop.functions))
        response = await AsyncSwarm(ScriptedModel(["Done."]).client()).run(agent, history, resume={"b": False})
    assert ([each.name for each in response.unknown_calls], len(tools.calls)) == (["book"], 1)
    assert not answers(response)[0].startswith("not run")


async def test_a_call_that_has_asked_is_closed_by_a_new_message() -> None:
    tools = Tools()
    model = ScriptedModel(["Done."])
    async with MCPServer(make_server(tools)) as shop:
        history = [*await asked(tools), {"role": "user", "content": "Hello?"}]
        await AsyncSwarm(model.client()).run(Agent(functions=list(shop.functions)), history)
    assert [each["content"] for each in model.requests[0].messages if each["role"] == "tool"] == [
        "cancelled; its outcome is unknown"
    ]


@pytest.mark.parametrize("resume", [True, {"b": True}], ids=["all", "one"])
async def test_a_call_that_has_asked_is_approved_without_an_answer(resume: Any) -> None:
    """It asks again, and the server is not called a second time for that."""
    tools = Tools()
    history = await asked(tools)
    async with MCPServer(make_server(tools)) as shop:
        agent = Agent(functions=list(shop.functions))
        swarm = AsyncSwarm(ScriptedModel(["Done."]).client())
        again = await swarm.run(agent, history, resume=resume)
        assert ([each.reason for each in again.waiting], len(tools.calls)) == (["Which day?"], 1)
        history += json.loads(json.dumps(again.messages))
        response = await swarm.run(agent, history, resume={"b": Answer({"when": {"day": "Monday"}})})
    assert (answers(response), len(tools.calls)) == (["order 7: accept {'hour': 9, 'day': 'Monday'}"], 2)


async def test_a_question_that_is_not_supported() -> None:
    """The server has begun the call, so it is no plain error."""
    async with MCPServer(make_server(Tools())) as shop:
        answers, unknown = await ask(shop, call("sample"))
    assert (answers[0].endswith("the outcome of the call is unknown."), unknown) == (True, ["sample"])


async def test_a_callback_that_fails_to_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The server has run up to its question, so the failure of `on_input` does not mean that nothing has happened."""

    def fail(*_: object) -> None:
        raise LookupError("no calendar")

    async with MCPServer(make_server(Tools()), on_input=fail) as shop:
        answers, unknown = await ask(shop, call("book"))
    assert (answers[0].endswith("the outcome of the call is unknown."), unknown) == (True, ["book"])
    assert "LookupError: no calendar" in caplog.text


async def test_a_server_that_asks_without_end() -> None:
    async with MCPServer(make_server(Tools())) as shop:
        answers, unknown = await ask(shop, call("wait"))
    assert ("the outcome of the call is unknown" in answers[0], unknown) == (True, ["wait"])


async def test_a_server_that_has_asked_and_then_is_gone() -> None:
    """The answer reaches a server that does not know the session, and then none at all."""
    refusal = (404, "text/plain", b"gone")
    question = {"requests": {"when": {"message": "Which day?", "mode": "form"}}, "state": "order 7"}
    mark = {"index": 0, "reason": "Which day?", "data": question}
    asking = {"id": "p", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "Go"},
        {"role": "assistant", "content": None, "tool_calls": [asking], "waiting": [mark]},
    ]
    server = PlainServer(refusal, refusal, counts_refusals=False)
    with served(server) as url:
        async with MCPServer(url) as shop:
            agent = Agent(functions=list(shop.functions))
            swarm = AsyncSwarm(ScriptedModel(["Done."]).client())
            response = await swarm.run(agent, history, resume={"p": Answer({"when": None})})
    assert [each.name for each in response.unknown_calls] == ["pay"]
    assert "was not called" not in answers(response)[0]


# --- what a server sends -----------------------------------------------------------------------------------------------

_PROGRAM = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "p", "version": "1"}
        },
        "tools/list": {"tools": [{"name": "big", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "x" * (SIZE - 1) + chr(228)}]},
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
    """They are replaced, and the session goes on."""
    async with MCPServer(stdio(journal)) as shop:
        assert await ask(shop, call("garble")) == (["done"], [])
        assert await ask(shop, call("echo", text="still there")) == (["still there"], [])


@pytest.mark.processes
async def test_a_result_of_one_long_line() -> None:
    """It comes in many reads, and whole."""
    program = _PROGRAM.replace("SIZE", "3000000")
    parameters = StdioServerParameters(command=sys.executable, args=["-S", "-E", "-c", program])
    async with MCPServer(parameters) as shop:
        (answer,), unknown = await ask(shop, call("big"))
    assert (len(answer), answer[-1], unknown) == (3_000_000, "\u00e4", [])


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_decode_as_utf_8(size: int) -> None:
    """However the reads cut lines and characters. A line is given out once: the SDK searches what it has at each read."""
    text = "one\n\ntw\u00f6 \U0001f600\n" * 5
    data = text.encode() + b"\xff\n" + b"rest"
    decoder = codecs.getincrementaldecoder(readable(StdioServerParameters(command="x")).encoding)("replace")
    pieces = [decoder.decode(data[at : at + size]) for at in range(0, len(data), size)]
    assert "".join(pieces) == text + "\ufffd\n"
    assert all(piece.endswith("\n") for piece in pieces if piece)
    assert decoder.decode(b"", final=True) == "rest"


def test_an_encoding_of_the_user_stays() -> None:
    chosen = StdioServerParameters(command="x", encoding="latin-1", encoding_error_handler="strict")
    assert readable(chosen) == chosen

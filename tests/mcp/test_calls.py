"""The calls of a server's tools, and their results for the model: in one process, over the SDK's own dispatch."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.server import Server
from mcp.types import ListToolsResult, PaginatedRequestParams
from mcp.types import Tool as ServerTool

from aswarm import Agent, AsyncSwarm, ConfigurationError, Reply, Response, external_tool
from aswarm.events import ToolProgress
from aswarm.mcp import MCPServer
from aswarm.testing import ScriptedCall, ScriptedModel, call
from aswarm.tools import function_tool
from tests.support.mcp.mcp_servers import PNG, Tools, make_server, tool
from tests.support.run.one_turn import contents


async def run(server: MCPServer, *calls: ScriptedCall, **options: Any) -> Response:
    """Run these calls in one turn."""
    async with AsyncSwarm(ScriptedModel([list(calls), "Done."]).client()) as swarm:
        return await swarm.run(Agent(functions=[*server.functions]), "Go", **options)


async def test_a_tool_is_offered_as_the_server_describes_it() -> None:
    """Name, description and schema are the server's, without the name of the schema's document."""
    model = ScriptedModel(["Done."])
    async with MCPServer(make_server(Tools()), prefix="my shop.", only="echo") as shop:
        await AsyncSwarm(model.client()).run(Agent(functions=[*shop.functions]), "Go")
    (offered,) = model.requests[0].body["tools"]
    assert offered["function"] == {
        "name": "my_shop_echo",
        "description": "Says it again.",
        "parameters": {"type": "object", "properties": {"text": {"type": "string", "minLength": 1}}},
    }


async def test_texts_are_joined_and_everything_else_is_a_content_part() -> None:
    """Audio and other resources are files, links are texts, and data without a text is JSON."""
    async with MCPServer(make_server(Tools())) as shop:
        response = await run(shop, call("echo", text="hi"), call("content"), call("blob"), call("structured"))
    echoed, parts, file, data = contents(response)
    assert (echoed, data) == ("hi", '{"city": "Köln"}')
    assert file[0]["file"]["filename"] == "bill.pdf"
    assert [part["type"] for part in parts] == ["text", "image_url", "file", "text", "image_url", "text"]
    assert parts[1]["image_url"]["url"] == f"data:image/gif;base64,{PNG}"
    assert parts[2]["file"]["filename"] == "audio.wav"
    assert parts[5]["text"] == "Orders: https://example.com/orders"


@pytest.mark.parametrize(
    ("schema", "is_left_out"),
    [
        ({"type": "integer", "default": 3}, True),
        ({"type": ["integer", "string"]}, True),
        ({"enum": ["a", "b"]}, True),
        ({"const": "a"}, True),
        ({"$ref": "#/$defs/Size"}, True),
        ({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Size"}]}, True),
        ({"type": ["integer", "null"]}, False),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, False),
        ({"enum": ["a", None]}, False),
        ({"$ref": "#/$defs/Loop"}, False),
        ({"$ref": "https://example.com/size.json"}, False),
        ({"description": "Anything."}, False),
        (True, False),
    ],
)
async def test_null_for_a_parameter_that_may_be_left_out_is_left_out(schema: Any, is_left_out: bool) -> None:
    """A null that the schema refuses is left out; a null that is not optional is sent."""
    definitions = {
        "Size": {"type": "string"},
        "Loop": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/Loop"}, {"type": "null"}]},
    }
    tools = Tools()
    properties = {"text": {"type": "string"}, "n": schema}
    offered = {"type": "object", "properties": properties, "required": ["text"], "$defs": definitions}
    tools.listed = [ServerTool(name="echo", input_schema=offered)]
    async with MCPServer(make_server(tools)) as shop:
        await run(shop, call("echo", text=None, n=None, other=None))
        await run(shop, call("echo", text="a", n="b"))
    left: dict[str, Any] = {} if is_left_out else {"n": None}
    assert [arguments for _, arguments in tools.calls] == [
        {"text": None, **left, "other": None},
        {"text": "a", "n": "b"},
    ]


async def test_data_that_cannot_be_read_is_named() -> None:
    """The call has succeeded, so the model reads the rest of the result, and no error."""
    async with MCPServer(make_server(Tools())) as shop:
        assert contents(await run(shop, call("broken"))) == ["A map:\n[image: its data is not valid base64]"]


async def test_the_model_reads_a_failure_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """`isError` is a ToolError with the server's text or data; no traceback is logged."""
    async with MCPServer(make_server(Tools())) as shop:
        response = await run(shop, call("fail"), call("fail_silently"), call("fail_as_data"))
    nothing = "fail_silently failed, and the server does not say why."
    assert contents(response) == ["no such order", nothing, '{"reason": "closed"}']
    assert "Traceback" not in caplog.text


async def test_the_model_reads_an_error_of_the_protocol() -> None:
    """The text is the server's, and the call has no unknown outcome."""
    async with MCPServer(make_server(Tools())) as shop:
        response = await run(shop, call("refuse"))
    assert (contents(response), response.unknown_calls) == (["text is too long"], [])


# The cursor that each page returns, and the names on it, by the cursor of the request.
CURSORS: list[Any] = [
    ({"": ("x", ["a", "b"]), "x": ("x", ["a", "b"])}, ["a", "b"], "gives the cursor 'x' again"),
    ({"": ("x", ["a"]), "x": ("y", ["b"]), "y": ("x", ["c"])}, ["a", "b", "c"], "gives the cursor 'x' again"),
    ({"": ("", ["a"])}, ["a"], "gives the cursor '' again"),
    ({"": (None, ["a", "b", "a"])}, ["a", "b"], "the first of each name is used: a"),
    ({"": ("x", ["a"]), "x": (None, ["b", "a"])}, ["a", "b"], "the first of each name is used: a"),
    ({"": ("x", ["a"]), "x": (None, ["b"])}, ["a", "b"], ""),
    ({"": ("x", ["c", "b"]), "x": (None, ["a"])}, ["a", "b", "c"], ""),  # sorted, because the order may change
]


@pytest.mark.parametrize(("pages", "offered", "fault"), CURSORS, ids=range(len(CURSORS)))
async def test_a_server_with_a_faulty_list_is_open_with_the_other_tools(
    pages: dict[str, tuple[str | None, list[str]]], offered: list[str], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the server and the fault; `refresh` does the same."""

    async def list_page(_: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        following, names = pages[(params and params.cursor) or ""]
        return ListToolsResult(tools=[tool(name) for name in names], next_cursor=following)

    async with MCPServer(Server("faulty", on_list_tools=list_page)) as server:
        assert [each.name for each in server.functions] == offered
        assert [each.name for each in await server.refresh()] == offered
    texts = [each.getMessage() for each in caplog.records if each.name == "aswarm"]
    assert len(texts) == 2 * bool(fault)
    assert all("the MCP server faulty: " in text and fault in text for text in texts)
    assert {each.__dict__["run_id"] for each in caplog.records if each.name == "aswarm"} <= {None}  # about no run


async def test_two_servers_with_equal_names_need_a_prefix() -> None:
    """The error names both servers and the option."""
    one, two = make_server(Tools(), "one"), make_server(Tools(), "two")
    async with MCPServer(one) as first, MCPServer(two) as second, MCPServer(two, prefix="two_") as prefixed:
        swarm = AsyncSwarm(ScriptedModel(["Done."]).client())
        with pytest.raises(ConfigurationError, match=r"of the MCP server one and the MCP server two.*prefix="):
            await swarm.run(Agent(functions=[*first.functions, *second.functions]), "Go")
        response = await swarm.run(Agent(functions=[*first.functions, *prefixed.functions]), "Go")
        assert response.text == "Done."


@pytest.mark.parametrize(("pages", "offered"), [(2, 2), (1000, 100)])
@pytest.mark.parametrize("is_empty", [True, False])
async def test_a_list_of_tools_may_have_pages_but_not_without_end(pages: int, offered: int, is_empty: bool) -> None:
    """All pages are read; a list without an end, also of empty pages, does not stop the program."""

    async def list_page(_: object, params: PaginatedRequestParams | None) -> ListToolsResult:
        number = int((params and params.cursor) or 0)
        following = str(number + 1) if number + 1 < pages else None
        return ListToolsResult(tools=[] if number and is_empty else [tool(f"t{number}")], next_cursor=following)

    async with MCPServer(Server("pages", on_list_tools=list_page)) as server:
        assert len(server.functions) == (1 if is_empty else offered)


async def test_hints_decide_which_tools_run_alone_and_which_may_be_repeated() -> None:
    """Only a destructive tool runs alone, and only an idempotent or read-only tool is repeatable."""
    async with MCPServer(make_server(Tools())) as shop:
        known = {each.__name__: each for each in shop.functions}
    assert [name for name, each in known.items() if each.concurrent is False] == ["delete_all"]
    assert [name for name, each in known.items() if each.repeatable] == ["echo", "update"]


@pytest.mark.parametrize(
    ("approve", "waits"),
    [
        ({"delete_*"}, ["delete_all"]),
        ("delete_all", ["delete_all"]),
        (True, ["echo", "write", "delete_all"]),
        ("destructive", ["delete_all"]),
        ({"destructive", "write"}, ["write", "delete_all"]),
        (lambda arguments, context: arguments["text"] == "b", ["write"]),
    ],
    ids=["a pattern", "a name", "all", "by the hints", "by the hints and a name", "a function"],
)
async def test_calls_wait_for_an_approval_by_the_option(approve: Any, waits: list[str]) -> None:
    """`approve` takes a value of `@tool`, names and patterns of tools, or the server's own hints."""
    tools = Tools()
    async with MCPServer(make_server(tools), approve=approve) as shop:
        calls = [call(name, text=text) for name, text in [("echo", "a"), ("write", "b"), ("delete_all", "c")]]
        response = await run(shop, *calls, resume=False)
    assert response.stop == "waiting"
    assert [each.name for each in response.open_calls if each.reason] == waits
    assert not {name for name, _ in tools.calls} & set(waits)


async def test_deferred_tools_of_a_server_are_found_and_keep_their_approvals() -> None:
    """The request has no tool of the server; a found tool is called on the server, and `approve` still decides."""
    tools = Tools()
    async with MCPServer(make_server(tools), approve="destructive", defer=True) as shop:
        made = [call("call_tool", {"name": name, "arguments": {"text": "a"}}) for name in ("echo", "delete_all")]
        model = ScriptedModel([call("search_tools", query="say it again"), made])
        response = await AsyncSwarm(model.client()).run(Agent(functions=[*shop.functions]), "Go")
    assert model.requests[0].tool_names == ["search_tools", "call_tool"]
    assert json.loads(contents(response)[0].split("\n")[0])["name"] == "echo"
    assert [(each.name, each.arguments) for each in response.open_calls] == [("delete_all", '{"text": "a"}')]
    assert [name for name, _ in tools.calls] == ["echo"]


async def test_progress_is_an_event_of_its_call_and_cancelling_reaches_the_server() -> None:
    """`stream()` yields the progress at once; leaving the run cancels the server's function."""
    tools = Tools()
    async with MCPServer(make_server(tools)) as shop:
        model = ScriptedModel([[call("slow", call_id="a"), call("slow", call_id="b")]])
        seen = []
        async with (
            AsyncSwarm(model.client()) as swarm,
            swarm.stream(Agent(functions=[*shop.functions]), "Go") as events,
        ):
            async for event in events:
                if isinstance(event, ToolProgress):
                    seen.append((event.id, event.value))
                if len(seen) == 2:
                    break
        assert sorted(seen) == [(key, {"progress": 1, "total": 3, "message": "begun"}) for key in "ab"]
        assert tools.cancelled == ["slow", "slow"]
        assert contents(await run(shop, call("echo", text="still there"))) == ["still there"]


async def test_a_question_of_the_server_is_a_call_that_waits_and_is_answered_elsewhere() -> None:
    """Another client makes the call again with the answer and the server's state."""
    async with MCPServer(make_server(Tools())) as shop:
        asked = await run(shop, call("book", call_id="c"))
    [question] = asked.open_calls
    assert question.reason == "Which day?"
    assert question.data["state"] == "order 7"
    assert question.data["requests"]["when"]["requestedSchema"]["required"] == ["day"]
    history = [{"role": "user", "content": "Go"}, *asked.messages]
    for answer, text in [
        ({"day": "Monday"}, "accept {'hour': 9, 'day': 'Monday'}"),
        (None, "decline None"),
        (True, "accept {'hour': 9}"),
    ]:
        async with MCPServer(make_server(Tools())) as shop, AsyncSwarm(ScriptedModel(["Done."]).client()) as swarm:
            agent = Agent(functions=[*shop.functions])
            response = await swarm.run(agent, history, resume={"c": Reply({"when": answer})})
        assert contents(response) == [f"order 7: {text}"]


@pytest.mark.parametrize("answer", ["Monday", {"day": "Monday"}, {"when": {"day": {"a": 1}}}, {"when": "Monday"}])
async def test_an_answer_that_does_not_fit_is_refused_before_anything_runs(answer: Any) -> None:
    """The ConfigurationError names the call, and the server is not called."""
    tools = Tools()
    async with MCPServer(make_server(tools)) as shop:
        asked = await run(shop, call("book", call_id="c"))
        history = [{"role": "user", "content": "Go"}, *asked.messages]
        async with AsyncSwarm(ScriptedModel([]).client()) as swarm:
            with pytest.raises(ConfigurationError, match="the call 'c' of book"):
                await swarm.run(Agent(functions=[*shop.functions]), history, resume={"c": Reply(answer)})
    assert len(tools.calls) == 1


async def test_a_callback_answers_during_the_call() -> None:
    """With `on_input`, nothing waits; the callback gets the message and the whole request."""
    seen: list[Any] = []

    def plain(message: str, request: dict[str, Any]) -> dict[str, Any]:
        seen.append((message, request["mode"]))
        return {"day": "Friday"}

    async def declines(message: str, request: dict[str, Any]) -> None:
        await anyio.lowlevel.checkpoint()

    for on_input, text in [
        (plain, "order 7: accept {'hour': 9, 'day': 'Friday'}"),
        (declines, "order 7: decline None"),
    ]:
        async with MCPServer(make_server(Tools()), on_input=on_input) as shop:
            assert contents(await run(shop, call("book"))) == [text]
    assert seen == [("Which day?", "form")]


async def test_a_server_may_ask_to_come_back_but_not_without_end() -> None:
    """A result with only a state is followed by the same call, at most ten times."""
    async with MCPServer(make_server(Tools())) as shop:
        response = await run(shop, call("wait", text="soon"), call("wait"))
    assert contents(response) == [
        "ready",
        "wait has no result: the MCP server shop has asked 10 times during this call; the outcome of the call is unknown.",
    ]


async def test_the_functions_change_with_refresh_only() -> None:
    """Agents keep their functions; `refresh()` returns the new functions."""
    tools = Tools()
    async with MCPServer(make_server(tools), only={"e*", "later*"}) as shop:
        before = shop.functions
        tools.listed = [*tools.listed, tool("later")]
        assert [each.__name__ for each in before] == ["echo"]
        assert [each.__name__ for each in await shop.refresh()] == ["echo", "later"]
        assert shop.functions is not before
        tools.listed = [tool("later.x"), tool("later x")]
        with pytest.raises(ConfigurationError, match=r"two tools of the MCP server shop.*only="):
            await shop.refresh()
        tools.listed = None  # type: ignore[assignment]
        with pytest.raises(ConfigurationError, match="shop does not list its tools"):
            await shop.refresh()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"only": {"ecko"}}, "only: the MCP server shop has no tool 'ecko'; its tools: blob, book, broken, "),
        ({"only": "destructive"}, "only: the MCP server shop has no tool 'destructive'"),
        ({"approve": {"echo", "dele"}}, "approve: the MCP server shop has no tool 'dele'"),
        ({"approve": {"delete-all"}}, "approve: the MCP server shop has no tool 'delete-all'"),
        ({"timeout": 0}, "timeout must be a positive number of seconds, not 0"),
    ],
)
async def test_options_that_mean_nothing_are_refused(options: Any, text: str) -> None:
    """A wrong name would offer too few tools, or run a tool without its approval."""
    with pytest.raises(ConfigurationError, match=text):
        async with MCPServer(make_server(Tools()), **options):
            pass


async def test_names_that_a_server_shows_hold_no_secrets() -> None:
    """Error texts reach the model: passwords and queries of a URL are left out, and a function has its name."""
    shown = repr(MCPServer("https://me:secret@example.com:8080/mcp?key=secret"))
    assert shown == "MCPServer('https://example.com:8080/mcp')"
    assert repr(MCPServer(make_server)) == "MCPServer('make_server')"
    with pytest.raises(ConfigurationError, match="StdioServerParameters"):
        MCPServer("npx server")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @acme/files /home/ann", "npx @acme/files"),
        ("/usr/bin/python3.12 -E server.py --key secret", "/usr/bin/python3.12 server.py"),
        ("env TOKEN=secret -u HOME=x npx -y @acme/files", "npx @acme/files"),
        ("env TOKEN=secret", "env"),
        ("acme-server secret", "acme-server"),
        ("acme-server --key secret", "acme-server"),
        ("uvx --index-url https://me:secret@example.com acme", "uvx"),
        ("node --env-file .env", "node .env"),
        ("node", "node"),
    ],
)
async def test_the_name_of_a_program_holds_no_secrets(command: str, name: str) -> None:
    """Its arguments may be keys; after a launcher, the package is the name of the server."""
    program, *arguments = command.split()
    assert MCPServer(StdioServerParameters(command=program, args=arguments)).name == name


async def test_a_tool_without_a_name() -> None:
    """No model can call it: opening is an error, and a prefix gives it a name."""
    tools = Tools()
    tools.listed.append(tool(""))
    with pytest.raises(ConfigurationError, match="a tool of the MCP server shop has no name"):
        async with MCPServer(make_server(tools)):
            pass
    async with MCPServer(make_server(tools), only={"?*"}) as shop:
        assert "call" not in [each.name for each in shop.functions]
    async with MCPServer(make_server(tools), prefix="shop_", only={""}) as shop:
        assert [each.name for each in shop.functions] == ["shop_"]


@pytest.mark.parametrize("make", [function_tool, external_tool])
def test_a_function_without_a_name(make: Any) -> None:
    async def call_it() -> str:
        return ""

    arguments = {"function": call_it} if make is function_tool else {}
    with pytest.raises(ConfigurationError, match="need a name"):
        make(**arguments, name="", description="", parameters={"type": "object"})

"""Servers of the Model Context Protocol for tests: with the SDK in this process and over HTTP, and without it over stdio."""

from __future__ import annotations

import base64
import socket
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import anyio
import uvicorn
from mcp import MCPError, StdioServerParameters
from mcp.server import Server, ServerRequestContext
from mcp.types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    AudioContent,
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    CreateMessageRequest,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    ListToolsResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)

FAILING = ("refuse", "fail", "fail_silently", "fail_as_data", "broken")
OTHERS = ("content", "blob", "structured", "slow", "book", "wait", "sample")
PNG = base64.b64encode(b"a picture").decode()
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORM = {
    "type": "object",
    "properties": {"day": {"type": "string"}, "hour": {"type": "integer", "default": 9}},
    "required": ["day"],
}
Result = CallToolResult | InputRequiredResult
Handler = Callable[[ServerRequestContext[Any], CallToolRequestParams], Awaitable[Result]]


def text(*parts: str, is_error: bool = False) -> CallToolResult:
    """Return a result of texts."""
    return CallToolResult(content=[TextContent(text=part) for part in parts], is_error=is_error)


def tool(name: str, *, description: str | None = None, **hints: bool) -> Tool:
    """Return a tool with one text as its argument, and hints such as `read_only_hint=True`."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "x",
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 1}},
    }
    annotations = ToolAnnotations(**hints) if hints else None
    return Tool(name=name, description=description, input_schema=schema, annotations=annotations)


class Tools:
    """Tools, with their recorded calls. `listed` may change."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.cancelled: list[str] = []
        self.listed = [
            tool("echo", description="Says it again.", read_only_hint=True),
            tool("write", destructive_hint=False),
            tool("delete_all", destructive_hint=True, idempotent_hint=False),
            *map(tool, FAILING + OTHERS),
            tool("update", idempotent_hint=True),
            Tool(name="typed", input_schema={"type": "object"}, output_schema=CITY),
        ]

    async def call(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> Result:
        """Carry out a call."""
        self.calls.append((params.name, params.arguments or {}))
        method: Handler = getattr(self, f"_{params.name}", self._echo)
        return await method(context, params)

    async def _echo(self, _: object, params: CallToolRequestParams) -> Result:
        return text(str((params.arguments or {}).get("text")))

    async def _content(self, *_: object) -> Result:
        picture = BlobResourceContents(uri="demo://pictures/1", blob=PNG, mime_type="image/png")
        note = TextResourceContents(uri="demo://notes/1", text="a note")
        return CallToolResult(
            content=[
                TextContent(text="first"),
                ImageContent(data=PNG, mime_type="image/gif"),
                AudioContent(data=PNG, mime_type="audio/wav"),
                EmbeddedResource(resource=note),
                EmbeddedResource(resource=picture),
                ResourceLink(name="Orders", uri="https://example.com/orders"),
            ]
        )

    async def _blob(self, *_: object) -> Result:
        blob = BlobResourceContents(uri="demo://papers/bill.pdf?page=1", blob=PNG, mime_type="application/pdf")
        return CallToolResult(content=[EmbeddedResource(resource=blob)])

    async def _structured(self, *_: object) -> Result:
        return CallToolResult(content=[], structured_content={"city": "Köln"})

    async def _fail(self, *_: object) -> Result:
        return text("no such order", is_error=True)

    async def _refuse(self, *_: object) -> Result:
        raise MCPError(INVALID_PARAMS, "text is too long")

    async def _typed(self, *_: object) -> Result:
        return CallToolResult(content=[], structured_content={"city": 7})

    async def _fail_silently(self, *_: object) -> Result:
        return CallToolResult(content=[], is_error=True)

    async def _fail_as_data(self, *_: object) -> Result:
        return CallToolResult(content=[], structured_content={"reason": "closed"}, is_error=True)

    async def _broken(self, *_: object) -> Result:
        return CallToolResult(content=[TextContent(text="A map:"), ImageContent(data="abc", mime_type="image/png")])

    async def _slow(self, context: ServerRequestContext[Any], _: object) -> Result:
        try:
            await context.session.report_progress(1, 3, "begun")
            await anyio.sleep(30)
        except anyio.get_cancelled_exc_class():
            self.cancelled.append("slow")
            raise
        return text("slow")

    async def _book(self, _: object, params: CallToolRequestParams) -> Result:
        answer = (params.input_responses or {}).get("when")
        if answer is None:
            asked = ElicitRequestFormParams(message="Which day?", requested_schema=FORM)
            return InputRequiredResult(input_requests={"when": ElicitRequest(params=asked)}, request_state="order 7")
        return text(f"{params.request_state}: {answer.action} {answer.content}")  # type: ignore[union-attr]

    async def _wait(self, _: object, params: CallToolRequestParams) -> Result:
        if params.request_state != "ready":
            return InputRequiredResult(request_state="ready" if (params.arguments or {}).get("text") else "no")
        return text("ready")

    async def _sample(self, *_: object) -> Result:
        request = CreateMessageRequest(params={"messages": [], "maxTokens": 1})  # type: ignore[arg-type]
        return InputRequiredResult(input_requests={"x": request})


def make_server(tools: Tools, name: str = "shop") -> Server[Any]:
    """Return a server of both versions of the protocol with these tools."""

    async def list_tools(*_: object) -> ListToolsResult:
        return ListToolsResult(tools=tools.listed)

    return Server(name, on_list_tools=list_tools, on_call_tool=tools.call)


def make_old_server(tools: Tools) -> Server[Any]:
    """Return a server that supports only the sessions before 2026-07-28, and asks the user during a call."""
    server = make_server(tools, "old")

    async def refuse(*_: object) -> Any:
        raise MCPError(METHOD_NOT_FOUND, "Method not found")

    async def ask(context: ServerRequestContext[Any], _: object) -> Result:
        answer = await context.session.elicit_form("Which day?", FORM, related_request_id=context.request_id)
        return text(f"{answer.action} {answer.content}")

    server.add_request_handler("server/discover", CallToolRequestParams, refuse)
    tools._book = ask  # type: ignore[method-assign,assignment]
    return server


def stdio(journal: Path) -> StdioServerParameters:
    """Return the parameters of the program `mcp_stdio_server.py`, with this journal."""
    program = Path(__file__).with_name("mcp_stdio_server.py")
    return StdioServerParameters(command=sys.executable, args=["-S", "-E", str(program), str(journal)])


@contextmanager
def over_http(make: Callable[[], Server[Any]], port: int = 0) -> Generator[tuple[str, int]]:
    """Run a server over HTTP, in a thread with an asyncio event loop. Yields its URL and its port."""
    listening = socket.create_server(("127.0.0.1", port))
    running: list[uvicorn.Server] = []
    ready = Event()

    def serve() -> None:
        config = uvicorn.Config(make().streamable_http_app(), log_level="critical", timeout_graceful_shutdown=0)
        running.append(uvicorn.Server(config))
        ready.set()
        running[0].run([listening])

    thread = Thread(target=serve)
    thread.start()
    ready.wait()
    try:
        number = listening.getsockname()[1]
        yield f"http://127.0.0.1:{number}/mcp", number
    finally:
        running[0].should_exit = True
        thread.join()
        listening.close()


def children() -> set[str]:
    """Return the running processes that this process has started, without pytest's own processes."""
    found: set[str] = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            found.update((thread / "children").read_text().split())
    return found

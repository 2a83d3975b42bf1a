"""`MCPServer`: the tools of a server of the Model Context Protocol as functions of agents.

Security: A new or changed tool of a server is offered only after `refresh()`, or by `latest_tools`.

Security: A call that waits for a user does not run if the text or the schema of its tool has changed since: the user is asked
again.

The SDK reads the output of a process 64 KiB at a time, appends them to the current line, and then searches the whole line
again. So a line of 30 MB blocks the event loop for seconds. The decoder of this module passes only complete lines to the SDK.

Security: The name of a server in errors and logs contains no password, token or argument.
"""

from __future__ import annotations

import codecs
import dataclasses
import logging
import math
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import dropwhile
from pathlib import PurePath
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

import anyio
from mcp import Client, StdioServerParameters
from mcp.types import (
    ElicitRequestParams,
    ElicitResult,
    Implementation,
    Prompt,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
)
from mcp.types import Tool as ServerTool

from aswarm import __version__
from aswarm._blocking.sync_swarm import wait_on_event_loop
from aswarm._runtime.backend import current_loop
from aswarm._tools.strict_schema import without_optional_nulls
from aswarm._values.errors import CallerMistake, ConfigurationError
from aswarm._values.text import NO_RUN
from aswarm.extensions import Approval, Handlers, Tool, function_tool

from ._functions import (
    FunctionOptions,
    RunTools,
    Shown,
    ToolList,
    content_of,
    may_repeat,
    parameters_of,
    runs_alone,
    version_of,
)
from ._requests import CHECK_SECONDS, SDK_ERRORS, InputAnswer, OnInput, Requests, ask, check_decision
from ._session import Connection, HttpTransport, SessionError, error_text, every_page

_LAUNCHERS = ("npx", "bunx", "pnpx", "uvx", "pipx", "node", "bun", "deno", "python")
_MAY_BE_SECRET = re.compile(r"=|://|\s")  # a setting, a URL, or code


def name_of(server: Any) -> str:
    """Return the name of the server without passwords, queries and arguments, because the model also reads error texts.

    Raises ConfigurationError for a text that is not a URL.
    """
    if isinstance(server, StdioServerParameters):
        return _program_of([server.command, *server.args])
    if isinstance(server, str):
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https"):
            raise ConfigurationError(
                f"an MCP server must be a URL that starts with https:// or http://, or StdioServerParameters(command=...), not {server!r}"
            )
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return str(getattr(server, "name", None) or getattr(server, "__qualname__", None) or type(server).__name__)


def _program_of(words: list[str]) -> str:
    """Return the name of the program of a command. For a launcher such as `npx`, add the package or the file that it starts."""
    if PurePath(words[0]).name == "env":
        words = [*dropwhile(lambda word: word.startswith("-") or "=" in word, words[1:])] or words[:1]
    command, *arguments = words
    if PurePath(command).stem.rstrip("0123456789.") not in _LAUNCHERS:
        return command
    launched = next((argument for argument in arguments if not argument.startswith("-")), "")
    return command if not launched or _MAY_BE_SECRET.search(launched) else f"{command} {launched}"


# --- the encoding: UTF-8, decoded in whole lines ------------------------------------------------------------------------

_ENCODING = "aswarm_utf_8_lines"


def readable(server: StdioServerParameters) -> StdioServerParameters:
    """Return the parameters with this encoding, unless the user has set another encoding.

    Bytes that are not UTF-8 become a replacement character, because an error would end the session.
    """
    ours: dict[str, Any] = {"encoding": _ENCODING, "encoding_error_handler": "replace"}
    return server.model_copy(update={key: value for key, value in ours.items() if key not in server.model_fields_set})


class _Lines(codecs.IncrementalDecoder):
    """Decodes whole lines, and keeps the unfinished line for the next read."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._rest: list[bytes] = []

    def decode(self, input: Any, final: bool = False) -> str:  # noqa: A002 - the names of the base class
        lines, newline, rest = bytes(input).rpartition(b"\n")
        if not (newline or final):
            self._rest.append(rest)
            return ""
        whole, self._rest = [*self._rest, lines, newline, *([rest] if final else [])], [] if final else [rest]
        return b"".join(whole).decode("utf-8", self.errors)

    def reset(self) -> None:
        self._rest = []


def _find(name: str) -> codecs.CodecInfo | None:
    if name != _ENCODING:
        return None
    return codecs.CodecInfo(codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=_Lines, name=_ENCODING)


codecs.register(_find)


# A URL, a command, a server of the SDK in this process, or a function that makes a new transport of the SDK for each session.
Target: TypeAlias = str | StdioServerParameters | Callable[[], Any] | Any

logger = logging.getLogger("aswarm")
_CLOSED = "Connection closed"  # the SDK's text if the server process stopped


class MCPServer:
    """A server of the Model Context Protocol, open inside `async with`; `functions` are its tools, for `Agent(functions=[...])`.

    If the session is lost, the next call opens a new session. A lost call is repeated only if the server marks its tool with
    `readOnlyHint` or `idempotentHint`. Otherwise the model reads that the outcome of the call is unknown. Any task of the event
    loop may open, use and close the server. For code without `await`, `with MCPServer(...)` opens it on the event loop of `Swarm`.

    Args:
        server: A URL of streamable HTTP; the SDK's `StdioServerParameters`, to start a process; a server object of the SDK in this
            process; or a function without parameters that makes a transport of the SDK, for other ways to authenticate.
        prefix: A prefix for the name of each tool.
        only: The names of the tools to offer, or patterns such as "read_*"; by default all tools.
        approve: The calls that wait for an approval: True for all calls, a function as in `@tool(approve=...)`, or names and
            patterns of tools. "destructive" means all tools except those marked as read-only or as not destructive.
        defer: True: the model finds the tools with `search_tools`, as with `@tool(defer=True)`.
        timeout: Seconds for opening, and for each call.
        on_input: A plain or async function that answers the questions of the server to the user. It gets the message, and the
            request as a dict. It returns the fields as a dict, True, or None to decline. Without this function, the call waits
            for a `Reply`. But a call to a server older than 2026-07-28 cannot wait, so the question is declined.
        headers: The headers of each request to a URL, such as `{"Authorization": "Bearer ..."}`.

    Attributes:
        name: The name of the server in error texts.

    Raises:
        ConfigurationError: If a text is not a URL, or `timeout` is not positive. Opening raises it if the server cannot be
            reached, if two tools have the same name, or if `only` or `approve` has an unknown name.
    """

    def __init__(
        self,
        server: Target,
        *,
        prefix: str = "",
        only: Collection[str] | None = None,
        approve: Approval | Collection[str] = False,
        defer: bool = False,
        timeout: float = 60.0,
        on_input: OnInput | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if headers is not None and not isinstance(server, str):
            raise ConfigurationError(
                "headers need a URL; pass the credentials of this server in its parameters or its transport"
            )
        if not timeout > 0:
            raise ConfigurationError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.name: str = name_of(server)
        self._tools = ToolList(self.name)
        self._server = readable(server) if isinstance(server, StdioServerParameters) else server
        self._options = FunctionOptions(prefix, only, approve, defer)
        self._timeout = timeout
        self._on_input = on_input
        self._http = HttpTransport(server, timeout, headers) if isinstance(server, str) else None
        self._requests = Requests(self.name, timeout, on_input, self._opened, self._reason)
        self._loop: object = None
        self._connection: Connection | None = None
        self._reading, self._read_at = anyio.Lock(), -math.inf

    def __repr__(self) -> str:
        return f"MCPServer({self.name!r})"

    @property
    def functions(self) -> list[Tool[..., Any]]:
        """The tools, as functions of an agent."""
        return self._tools.functions

    # --- opening and closing ---

    async def __aenter__(self) -> Self:
        if self._connection is not None:
            raise ConfigurationError(
                f"the MCP server {self.name} is already open; make another MCPServer(...) for another block"
            )
        connection = Connection(self.name, self._client, self._timeout)
        try:
            session = connection.session()
            await session.opened()
            self._take(session.tools)
        except SessionError as error:
            raise ConfigurationError(f"the MCP server {self.name} cannot be opened: {self._reason(error)}") from error
        except BaseException:
            await connection.close()
            raise
        self._connection, self._loop = connection, current_loop()
        self._reading, self._read_at = anyio.Lock(), -math.inf
        return self

    async def __aexit__(self, *_: object) -> None:
        connection, self._connection = self._opened(), None
        await connection.close()

    def __enter__(self) -> Self:
        return wait_on_event_loop(self.__aenter__)

    def __exit__(self, *_: object) -> None:
        wait_on_event_loop(self.__aexit__)

    async def refresh(self) -> list[Tool[..., Any]]:
        """Read the list of tools again. Returns the new `functions`; agents keep the functions that they have.

        The list is read only here, at opening, and by `latest_tools`. Raises ConfigurationError for the same reasons as opening, or if the list cannot be
        read. If this raises, `functions` does not change.
        """
        try:
            client = await self._opened().session().opened()
            self._take(await every_page(self.name, "tools", client))
        except (SessionError, *SDK_ERRORS) as error:
            raise ConfigurationError(
                f"the MCP server {self.name} does not list its tools: {self._reason(error)}"
            ) from error
        return self.functions

    def latest_tools(self, handlers: Handlers) -> Handlers:
        """Middleware: each run has the tools that the server has at its start, `AsyncSwarm(middleware=[github.latest_tools])`.

        The first request or call of a run by an agent with functions of this server reads the list again. If it has changed, the
        agent gets the new functions in its list of functions: all of them if it had all, otherwise those of the same names.
        Other runs keep the tools with which they have started. If the list cannot be read within 5 s, it does not change.
        """
        return RunTools(handlers, self._tools, self._read_again).handlers

    async def _read_again(self) -> None:
        _, asked = self._opened(), anyio.current_time()
        async with self._reading:
            if self._read_at > asked:  # by another run, and since this run has asked
                return
            started = anyio.current_time()
            try:
                with anyio.fail_after(min(self._timeout, CHECK_SECONDS)):
                    await self.refresh()
            except (ConfigurationError, TimeoutError) as error:
                logger.warning("the list of tools does not change: %s", error_text(error), extra=NO_RUN)
            self._read_at = started

    def _take(self, tools: list[ServerTool]) -> None:
        self._tools.take(self._options.offered(tools, self.name), self._function)

    def _opened(self) -> Connection:
        if self._connection is None:
            raise CallerMistake(
                f"the MCP server {self.name} is not open; run its functions inside `async with MCPServer(...)`"
            )
        if current_loop() is not self._loop:
            raise CallerMistake(
                f"the MCP server {self.name} belongs to the event loop that opened it; for Swarm, open it with `with MCPServer(...)`"
            )
        return self._connection

    def _reason(self, error: Exception) -> str:
        text = error_text(error)
        if isinstance(self._server, StdioServerParameters) and text == _CLOSED:
            return "its program has stopped; the reason may be in its stderr"
        return text if self._http is None else self._http.reason(text)

    def _client(self) -> Client:
        server: Any = self._server if self._http is None else self._http.open
        target: Any = server() if callable(server) else server
        return Client(
            target,
            client_info=Implementation(name="aswarm", version=__version__),
            elicitation_callback=self._answer_now,
        )

    async def _answer_now(self, context: object, params: ElicitRequestParams) -> ElicitResult:  # noqa: ARG002 - the SDK's
        """Answer a question of a server older than 2026-07-28. Such a server waits for the answer during the call."""
        return await ask(self._on_input or _decline, params)

    # --- beside the tools ---

    async def resources(self) -> list[Resource | ResourceTemplate]:
        """Return the resources of the server, and its templates of URIs. Raises ToolError if the server does not list them."""
        listed = await self._requests.read(partial(every_page, self.name, "resources"))
        return [*listed, *await self._requests.read(partial(every_page, self.name, "resource_templates"))]

    async def read_resource(self, uri: str) -> ReadResourceResult:
        """Return a resource of the server, in the SDK's form. Raises ToolError if the server does not send it.

        A lost request is sent again, once. For functions with an allow list for the model, see `resource_functions`.
        """
        return await self._requests.read(lambda client: client.read_resource(uri))

    async def prompts(self) -> list[Prompt]:
        """Return the prompts of the server, with their arguments. Raises ToolError if the server does not list them."""
        return await self._requests.read(partial(every_page, self.name, "prompts"))

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> str | list[dict[str, Any]]:
        """Return a prompt of the server as the content of one message of the user. Show it to the user before you send it.

        Messages of the assistant are quoted in its text. Raises ToolError if the server does not send the prompt.
        """
        return content_of(await self._requests.read(lambda client: client.get_prompt(name, dict(arguments or {}))))

    # --- functions ---

    def _function(self, name: str, tool: ServerTool) -> Tool[..., Any]:
        parameters, version = parameters_of(tool), version_of(tool)

        async def call(**arguments: Any) -> str | list[Shown]:
            return await self._requests.call(tool, without_optional_nulls(arguments, parameters))

        function = function_tool(
            call,
            name=name,
            description=tool.description or tool.title or "",
            parameters=parameters,
            concurrent=False if runs_alone(tool) else None,
            repeatable=may_repeat(tool),
            approve=self._options.approval(tool),
            may_wait=True,
            defer=self._options.defer,
            check_decision=check_decision,
            version=lambda: self._tools.versions.get(tool.name, version),
        )
        return dataclasses.replace(function, _origin=f"the MCP server {self.name}")


def _decline(message: str, _: dict[str, Any]) -> InputAnswer:
    logger.warning(
        "the question %r of an MCP server was declined; pass a function as MCPServer(on_input=...) to answer it",
        message,
        extra=NO_RUN,  # this callback does not know which call has asked
    )
    return None

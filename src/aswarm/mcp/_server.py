"""`MCPServer`: a server of the Model Context Protocol as functions of agents.

Decides what one call of a function does: what it sends, whether it sends it again, and what the model is told.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeAlias

import anyio
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import (
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    Implementation,
    InputRequiredResult,
    InputResponses,
)
from mcp.types import Tool as ServerTool
from pydantic import ValidationError

from aswarm import __version__
from aswarm._blocking.sync_swarm import wait_on_event_loop
from aswarm._errors import CallerMistake, CallLost, ConfigurationError, ToolError, ToolTimeout
from aswarm._run.current_call import progress, running_call
from aswarm._run.handlers import NO_RUN
from aswarm._runtime.backend import current_loop
from aswarm._tools.tool import Approval, Tool, function_tool

from ._functions import FunctionOptions, may_repeat, parameters_of, runs_alone
from ._http import HttpTransport
from ._input import InputAnswer, OnInput, ask, check_decision, hold_of, questions_in, responses_of
from ._outcomes import CallOutcome, outcome_of
from ._results import Shown, value_of
from ._server_name import name_of
from ._session import Connection, ServerSession, SessionError, all_tools, error_text

# A URL, a command, a server of the SDK in this process, or a function that makes a transport of the SDK for each session.
Target: TypeAlias = str | StdioServerParameters | Callable[[], Any] | Any

logger = logging.getLogger("aswarm")
_SDK_ERRORS = (
    MCPError,
    RuntimeError,
    ValidationError,
)  # what a request of the SDK raises; the last two where a result is not valid
_CLOSED = "Connection closed"  # the SDK's text for a program that has ended
_MOST_ROUNDS = 10  # how often a server may ask during one call
_POLL_SECONDS = 0.1  # before the next round of a call whose server asks nothing yet
_CHECK_SECONDS = 5.0  # how long a server that has not answered a call has for another request


class MCPServer:
    """A server of the Model Context Protocol, open inside `async with`; `functions` are its tools, for `Agent(functions=[...])`.

    `server`: a URL of streamable HTTP, the SDK's `StdioServerParameters` of a process to start, a server object of the SDK
    in this process, or a function without parameters that makes a transport of the SDK, for all other ways to authenticate.
    `prefix`: stands before each name that the model sees. `only`: the names of the tools to offer, or patterns such as
    "read_*"; by default all tools. `approve`: which calls wait for an approval. It is True for all, a function as in
    `@tool(approve=...)`, or names and patterns of tools. "destructive" among them means the tools that the server marks
    neither as read-only nor as not destructive. `timeout`: seconds for opening, and for each call. `on_input`: a plain or
    async function that answers the questions of the server to the user. It gets the message, and the request as a dict, and
    returns the fields as a dict, True, or None to decline. Without it, the call waits for an `Answer`; for a server older
    than 2026-07-28, whose calls cannot wait, the user declines. `headers`: sent with each request to a URL, such as
    `{"Authorization": "Bearer ..."}`.

    Attributes: `functions`, and `name`, which stands for the server in error texts.

    The next call opens a session again that was lost. A lost call is made again only if the server marks its tool with
    `readOnlyHint` or `idempotentHint`; otherwise the model is told that the outcome is unknown. Any task of its event loop may
    open, use and close it. `with MCPServer(...)` opens it on the event loop of `Swarm`, for code without `await`.

    Raises ConfigurationError for a text that is no URL, and for a `timeout` that is not positive. Opening raises it if the
    server cannot be reached, if two tools have the same name, and for a name in `only` or `approve` that no tool has.
    """

    def __init__(
        self,
        server: Target,
        *,
        prefix: str = "",
        only: Collection[str] | None = None,
        approve: Approval | Collection[str] = False,
        timeout: float = 60.0,
        on_input: OnInput | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if headers is not None and not isinstance(server, str):
            raise ConfigurationError("headers are sent to a URL only; give another server what it needs in its own way")
        if not timeout > 0:
            raise ConfigurationError(f"timeout must be a positive number of seconds, not {timeout!r}")
        self.name = name_of(server)
        self.functions: list[Tool[..., Any]] = []
        self._server = server
        self._options = FunctionOptions(prefix, only, approve)
        self._timeout = timeout
        self._on_input = on_input
        self._http = HttpTransport(server, timeout, headers) if isinstance(server, str) else None
        self._loop: object = None
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"MCPServer({self.name!r})"

    # --- opening and closing ---

    async def __aenter__(self) -> Self:
        if self._connection is not None:
            raise ConfigurationError(
                f"the MCP server {self.name} is open; make another MCPServer(...) for another block"
            )
        connection = Connection(self.name, self._client, self._timeout)
        try:
            session = connection.session()
            await session.opened()
            self.functions = self._functions_of(session.tools)
        except SessionError as error:
            raise ConfigurationError(f"the MCP server {self.name} cannot be opened: {self._reason(error)}") from error
        except BaseException:
            await connection.close()
            raise
        self._connection, self._loop = connection, current_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        connection, self._connection = self._opened(), None
        await connection.close()

    def __enter__(self) -> Self:
        return wait_on_event_loop(self.__aenter__)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wait_on_event_loop(functools.partial(self.__aexit__, kind, error, traceback))

    async def refresh(self) -> list[Tool[..., Any]]:
        """Read the list of tools again. Returns the new `functions`; agents keep the functions that they have.

        The list is read here and at opening only: functions that change in the middle of a run would confuse the model, and
        spoil the cache of the provider. Raises ConfigurationError as opening does, and if the list cannot be read; `functions`
        then stay as they were.
        """
        try:
            client = await self._opened().session().opened()
            self.functions = self._functions_of(await all_tools(client))
        except (SessionError, *_SDK_ERRORS) as error:
            raise ConfigurationError(
                f"the MCP server {self.name} does not list its tools: {self._reason(error)}"
            ) from error
        return self.functions

    def _opened(self) -> Connection:
        if self._connection is None:
            raise CallerMistake(
                f"the MCP server {self.name} is not open; run its functions inside `async with MCPServer(...)`"
            )
        if current_loop() is not self._loop:
            raise CallerMistake(
                f"the MCP server {self.name} belongs to the event loop that opened it; for Swarm, open it by `with MCPServer(...)`"
            )
        return self._connection

    def _reason(self, error: Exception) -> str:
        text = error_text(error)
        if isinstance(self._server, StdioServerParameters) and text == _CLOSED:
            return "its program has ended, and its stderr may say why"
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
        """Answer a question of an older server, which waits for the answer."""
        return await ask(self._on_input or _decline, params)

    # --- calls ---

    def _functions_of(self, tools: list[ServerTool]) -> list[Tool[..., Any]]:
        return [self._function(name, tool) for name, tool in self._options.offered(tools, self.name).items()]

    def _function(self, name: str, tool: ServerTool) -> Tool[..., Any]:
        async def call(**arguments: Any) -> str | list[Shown]:
            return await self._call(tool, arguments)

        made = function_tool(
            call,
            name=name,
            description=tool.description or tool.title or "",
            parameters=parameters_of(tool),
            concurrent=not runs_alone(tool),
            repeatable=may_repeat(tool),
            approve=self._options.approval(tool),
        )
        return dataclasses.replace(made, check_decision=check_decision, origin=f"the MCP server {self.name}")

    async def _call(self, tool: ServerTool, arguments: dict[str, Any]) -> str | list[Shown]:
        send = functools.partial(self._send, tool, arguments)
        call = running_call.get()
        result = await send(*responses_of(None if call is None else call.decided))
        for _ in range(_MOST_ROUNDS):
            if isinstance(result, CallToolResult):
                return value_of(result, tool.name)
            result = await send(*await self._answer(result))
        raise ToolError(
            f"{tool.name} has no result: the MCP server {self.name} has asked {_MOST_ROUNDS} times during this call."
        )

    async def _answer(self, result: InputRequiredResult) -> tuple[InputResponses | None, str | None]:
        questions = questions_in(result, self.name)
        if not questions:
            await anyio.sleep(_POLL_SECONDS)
            return None, result.request_state
        if self._on_input is None:
            raise hold_of(questions, result.request_state)
        answers: InputResponses = {
            key: await ask(self._on_input, question.params) for key, question in questions.items()
        }
        return answers, result.request_state

    async def _send(
        self,
        tool: ServerTool,
        arguments: dict[str, Any],
        responses: InputResponses | None,
        state: str | None,
        *,
        is_second: bool = False,
    ) -> CallToolResult | InputRequiredResult:
        connection = self._opened()
        session = connection.session()
        try:
            client = await session.opened()
        except SessionError as error:
            raise ToolError(
                f"The MCP server {self.name} cannot be reached, and {tool.name} was not called: {self._reason(error)}"
            ) from error
        try:
            return await client.session.call_tool(
                tool.name,
                arguments,
                self._timeout,
                _reporter(),
                input_responses=responses,
                request_state=state,
                allow_input_required=True,
            )
        except _SDK_ERRORS as error:
            outcome = outcome_of(error)
            await self._give_up_if_lost(connection, session, client, outcome)
            repeats = outcome is CallOutcome.NOT_RUN or (outcome is CallOutcome.LOST and may_repeat(tool))
            if is_second or not repeats:
                raise self._failure(tool, outcome, error) from error
        return await self._send(tool, arguments, responses, state, is_second=True)

    async def _give_up_if_lost(
        self, connection: Connection, session: ServerSession, client: Client, outcome: CallOutcome
    ) -> None:
        if outcome is CallOutcome.TIMED_OUT and await _answers_requests(client, self._timeout):
            return
        if outcome is not CallOutcome.ANSWERED:
            connection.give_up(session)

    def _failure(self, tool: ServerTool, outcome: CallOutcome, error: Exception) -> ToolError:
        match outcome:
            case CallOutcome.ANSWERED:
                return ToolError(self._reason(error))
            case CallOutcome.TIMED_OUT:
                return ToolTimeout(
                    f"{tool.name} did not answer within {self._timeout:g} s; its outcome is unknown.",
                    still_running=True,
                )
            case _:
                return CallLost(
                    f"The connection to the MCP server {self.name} was lost during {tool.name} ({self._reason(error)}); the outcome of "
                    "the call is unknown."
                )


async def _answers_requests(client: Client, seconds: float) -> bool:
    """Whether the server answers another request: then it is only slow, and its session works."""
    with anyio.move_on_after(min(seconds, _CHECK_SECONDS)), suppress(*_SDK_ERRORS):
        await client.session.list_tools()
        return True
    return False


def _decline(message: str, _: dict[str, Any]) -> InputAnswer:
    logger.warning(
        "an MCP server asked the user %r, and the answer was to decline; a function for MCPServer(on_input=...) can answer",
        message,
        extra=NO_RUN,  # the question does not say which call it belongs to
    )
    return None


def _reporter() -> Any:
    """A callback for the SDK that reports the progress of this call. The SDK calls it in a task without the call's context."""
    context = contextvars.copy_context()

    async def report(done: float, total: float | None, message: str | None) -> None:
        fields = {"progress": done, "total": total, "message": message}
        context.run(progress, {key: value for key, value in fields.items() if value is not None})

    return report

"""`MCPServer`: the tools of a server of the Model Context Protocol as functions of agents.

`MCPServer` sends the calls, repeats a lost call if that is safe, and turns errors into tool messages.

Security: A new or changed tool of a server is offered only after `refresh()`.

Security: The name of a server in errors and logs contains no password, token or argument.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import dropwhile
from pathlib import PurePath
from types import TracebackType
from typing import Any, Self, TypeAlias
from urllib.parse import urlsplit

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
from aswarm._runtime.backend import current_loop
from aswarm._tools.strict_schema import without_optional_nulls
from aswarm._values.errors import CallerMistake, CallLost, ConfigurationError, ToolError, ToolTimeout
from aswarm._values.text import NO_RUN
from aswarm.extensions import Approval, CallDecision, Tool, current_call, function_tool, progress

from ._functions import FunctionOptions, Shown, may_repeat, parameters_of, runs_alone, value_of
from ._http import CallOutcome, HttpTransport, outcome_of
from ._input import InputAnswer, OnInput, ask, check_decision, hold_of, question_of, questions_in, responses_of
from ._lines import readable
from ._session import Connection, ServerSession, SessionError, all_tools, error_text

# A URL, a command, a server of the SDK in this process, or a function that makes a new transport of the SDK for each session.
Target: TypeAlias = str | StdioServerParameters | Callable[[], Any] | Any

logger = logging.getLogger("aswarm")
# The errors of a request; RuntimeError and ValidationError mean an invalid result.
_SDK_ERRORS = (MCPError, RuntimeError, ValidationError)
_CLOSED = "Connection closed"  # the SDK's text if the server process stopped
_MOST_ROUNDS = 10  # rounds of questions during one call
_POLL_SECONDS = 0.1  # pause before the next round, if the server returned a state without a question
_CHECK_SECONDS = 5.0  # time limit of the request that checks a server after a call timed out


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
        timeout: Seconds for opening, and for each call.
        on_input: A plain or async function that answers the questions of the server to the user. It gets the message, and the
            request as a dict. It returns the fields as a dict, True, or None to decline. Without this function, the call waits
            for a `Reply`. But a call to a server older than 2026-07-28 cannot wait, so the question is declined.
        headers: The headers of each request to a URL, such as `{"Authorization": "Bearer ..."}`.

    Attributes:
        functions: The tools, as functions of an agent.
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
        self.functions: list[Tool[..., Any]] = []
        self._server = readable(server) if isinstance(server, StdioServerParameters) else server
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
                f"the MCP server {self.name} is already open; make another MCPServer(...) for another block"
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

        The list is read only here and at opening. If functions changed during a run, the model would be confused, and the prompt
        cache of the provider would miss. Raises ConfigurationError for the same reasons as opening, or if the list cannot be
        read. If this raises, `functions` does not change.
        """
        try:
            client = await self._opened().session().opened()
            self.functions = self._functions_of(await all_tools(client, self.name))
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

    # --- calls ---

    def _functions_of(self, tools: list[ServerTool]) -> list[Tool[..., Any]]:
        return [self._function(name, tool) for name, tool in self._options.offered(tools, self.name).items()]

    def _function(self, name: str, tool: ServerTool) -> Tool[..., Any]:
        parameters = parameters_of(tool)

        async def call(**arguments: Any) -> str | list[Shown]:
            return await self._call(tool, without_optional_nulls(arguments, parameters))

        function = function_tool(
            call,
            name=name,
            description=tool.description or tool.title or "",
            parameters=parameters,
            concurrent=False if runs_alone(tool) else None,
            repeatable=may_repeat(tool),
            approve=self._options.approval(tool),
            may_wait=True,
            check_decision=check_decision,
        )
        return dataclasses.replace(function, _origin=f"the MCP server {self.name}")

    async def _call(self, tool: ServerTool, arguments: dict[str, Any]) -> str | list[Shown]:
        send = functools.partial(self._send, tool, arguments)
        decision = _decision()
        if (hold := question_of(decision)) is not None:
            raise hold  # without an answer, the call would run from its start and repeat what it did before the question
        result = await send(*responses_of(decision))
        for _ in range(_MOST_ROUNDS):
            if isinstance(result, CallToolResult):
                return value_of(result, tool.name)
            result = await send(*await self._answer(result))
        raise CallLost(
            f"{tool.name} has no result: the MCP server {self.name} has asked {_MOST_ROUNDS} times during this call; the outcome "
            "of the call is unknown."
        )

    async def _answer(self, result: InputRequiredResult) -> tuple[InputResponses | None, str | None]:
        questions = questions_in(result, self.name)
        if not questions:
            await anyio.sleep(_POLL_SECONDS)
            return None, result.request_state
        if self._on_input is None:
            raise hold_of(questions, result.request_state)
        try:
            answers: InputResponses = {
                key: await ask(self._on_input, question.params) for key, question in questions.items()
            }
        except Exception as error:
            logger.exception("on_input of the MCP server %s failed", self.name, extra=NO_RUN)
            raise CallLost(
                f"The question of the MCP server {self.name} was not answered ({error_text(error)}); the outcome of the call is unknown."
            ) from error
        return answers, result.request_state

    async def _send(
        self, tool: ServerTool, arguments: dict[str, Any], responses: InputResponses | None, state: str | None
    ) -> CallToolResult | InputRequiredResult:
        connection = self._opened()
        # `lost`: the error of an attempt that may have run. A call with `responses` or `state` has run up to a question.
        lost: Exception | None = None if responses is None and state is None else RuntimeError("after its question")
        is_last = False
        while True:
            try:
                session = connection.session()
                client = await session.opened()
            except SessionError as error:
                raise self._not_called(tool, error, lost) from error
            except CallerMistake as error:
                if not is_last:
                    raise
                raise self._not_called(tool, error, lost) from error  # the server was closed during the first attempt
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
                if is_last or not repeats:
                    raise self._failure(tool, outcome, error, lost) from error
                lost = error if outcome is CallOutcome.LOST else lost
                is_last = True

    async def _give_up_if_lost(
        self, connection: Connection, session: ServerSession, client: Client, outcome: CallOutcome
    ) -> None:
        if outcome is CallOutcome.TIMED_OUT and await _answers_requests(client, self._timeout):
            return
        if outcome not in (CallOutcome.ANSWERED, CallOutcome.UNREADABLE):
            connection.give_up(session)

    def _failure(self, tool: ServerTool, outcome: CallOutcome, error: Exception, lost: Exception | None) -> ToolError:
        match outcome:
            case CallOutcome.ANSWERED:
                return ToolError(self._reason(error))
            case CallOutcome.NOT_RUN:
                return self._not_called(tool, error, lost)
            case CallOutcome.TIMED_OUT:
                return ToolTimeout(
                    f"{tool.name} did not answer within {self._timeout:g} s; its outcome is unknown.",
                    still_running=True,
                )
            case CallOutcome.UNREADABLE:
                return CallLost(
                    f"{tool.name} has no result that can be read ({self._reason(error)}); the outcome of the call is unknown."
                )
            case _:  # LOST
                return CallLost(
                    f"The connection to the MCP server {self.name} was lost during {tool.name} ({self._reason(error)}); the outcome of "
                    "the call is unknown."
                )

    def _not_called(self, tool: ServerTool, error: Exception, lost: Exception | None) -> ToolError:
        """Return the error for an attempt that has not run. `lost`: the error of an earlier attempt that may have run, or None."""
        if lost is not None:
            return self._failure(tool, CallOutcome.LOST, lost, None)
        return ToolError(
            f"The MCP server {self.name} cannot be reached, and {tool.name} was not called: {self._reason(error)}"
        )


def _decision() -> CallDecision | None:
    """Return the decision on the current call, or None. A program may also call the functions of a server itself."""
    with suppress(ConfigurationError):
        return current_call().decision
    return None


async def _answers_requests(client: Client, seconds: float) -> bool:
    """Return whether the server answers another request. If it answers, the session works, and only the call is slow."""
    with anyio.move_on_after(min(seconds, _CHECK_SECONDS)), suppress(*_SDK_ERRORS):
        await client.session.list_tools()
        return True
    return False


def _decline(message: str, _: dict[str, Any]) -> InputAnswer:
    logger.warning(
        "the question %r of an MCP server was declined; pass a function as MCPServer(on_input=...) to answer it",
        message,
        extra=NO_RUN,  # this callback does not know which call has asked
    )
    return None


def _reporter() -> Any:
    """Return a callback for the SDK that reports the progress of this call. The SDK calls it in a task with another context."""
    context = contextvars.copy_context()

    async def report(done: float, total: float | None, message: str | None) -> None:
        fields = {"progress": done, "total": total, "message": message}
        context.run(progress, {key: value for key, value in fields.items() if value is not None})

    return report


# --- the name of a server, without the parts of a URL or a command that may be secret ---

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

"""Requests to a server: calls of its tools, and requests that only read.

A lost call is repeated if that is safe, and errors become tool messages.
"""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio
from mcp import Client, MCPError
from mcp.types import CallToolResult, InputRequiredResult, InputResponses
from mcp.types import Tool as ServerTool
from pydantic import ValidationError

from aswarm._values.errors import CallerMistake, CallLost, ConfigurationError, ToolError, ToolTimeout
from aswarm._values.text import NO_RUN
from aswarm.extensions import CallDecision, current_call, progress

from ._functions import Shown, may_repeat, value_of
from ._http import CallOutcome, outcome_of
from ._input import OnInput, ask, hold_of, question_of, questions_in, responses_of
from ._session import Connection, ServerSession, SessionError, error_text

logger = logging.getLogger("aswarm")
R = TypeVar("R")

# The errors of a request; RuntimeError and ValidationError mean an invalid result.
SDK_ERRORS = (MCPError, RuntimeError, ValidationError)
CHECK_SECONDS = 5.0  # time limit of a request that is no call: the check after a call timed out, and the list for a run
_MOST_ROUNDS = 10  # rounds of questions during one call
_POLL_SECONDS = 0.1  # pause before the next round, if the server returned a state without a question


class Requests:
    """Sends requests to a server. `opened`: returns the open connection. `reason`: the text of an error of the SDK."""

    def __init__(
        self,
        name: str,
        timeout: float,
        on_input: OnInput | None,
        opened: Callable[[], Connection],
        reason: Callable[[Exception], str],
    ) -> None:
        self._name = name
        self._timeout = timeout
        self._on_input = on_input
        self._opened = opened
        self._reason = reason

    # --- requests that only read ---

    async def read(self, request: Callable[[Client], Awaitable[R]]) -> R:
        """Return the answer to a request. If it was lost, it is sent again, once. Raises ToolError."""
        connection, is_last = self._opened(), False
        while True:
            session = connection.session()
            try:
                with anyio.fail_after(self._timeout):
                    return await request(await session.opened())
            except TimeoutError as error:
                raise ToolTimeout(f"the MCP server {self._name} did not answer within {self._timeout:g} s") from error
            except SessionError as error:
                raise ToolError(f"the MCP server {self._name} cannot be reached: {self._reason(error)}") from error
            except SDK_ERRORS as error:
                outcome = outcome_of(error)
                if is_last or outcome not in (CallOutcome.NOT_RUN, CallOutcome.LOST):
                    raise ToolError(f"the MCP server {self._name}: {self._reason(error)}") from error
                connection.give_up(session)
                is_last = True

    # --- calls ---

    async def call(self, tool: ServerTool, arguments: dict[str, Any]) -> str | list[Shown]:
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
            f"{tool.name} has no result: the MCP server {self._name} has asked {_MOST_ROUNDS} times during this call; the outcome "
            "of the call is unknown."
        )

    async def _answer(self, result: InputRequiredResult) -> tuple[InputResponses | None, str | None]:
        questions = questions_in(result, self._name)
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
            logger.exception("on_input of the MCP server %s failed", self._name, extra=NO_RUN)
            raise CallLost(
                f"The question of the MCP server {self._name} was not answered ({error_text(error)}); the outcome of the call is unknown."
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
            except SDK_ERRORS as error:
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
                    f"The connection to the MCP server {self._name} was lost during {tool.name} ({self._reason(error)}); the outcome of "
                    "the call is unknown."
                )

    def _not_called(self, tool: ServerTool, error: Exception, lost: Exception | None) -> ToolError:
        """Return the error for an attempt that has not run. `lost`: the error of an earlier attempt that may have run, or None."""
        if lost is not None:
            return self._failure(tool, CallOutcome.LOST, lost, None)
        return ToolError(
            f"The MCP server {self._name} cannot be reached, and {tool.name} was not called: {self._reason(error)}"
        )


def _decision() -> CallDecision | None:
    """Return the decision on the current call, or None. A program may also call the functions of a server itself."""
    with suppress(ConfigurationError):
        return current_call().decision
    return None


async def _answers_requests(client: Client, seconds: float) -> bool:
    """Return whether the server answers another request. If it answers, the session works, and only the call is slow."""
    with anyio.move_on_after(min(seconds, CHECK_SECONDS)), suppress(*SDK_ERRORS):
        await client.session.list_tools()
        return True
    return False


def _reporter() -> Any:
    """Return a callback for the SDK that reports the progress of this call. The SDK calls it in a task with another context."""
    context = contextvars.copy_context()

    async def report(done: float, total: float | None, message: str | None) -> None:
        fields = {"progress": done, "total": total, "message": message}
        context.run(progress, {key: value for key, value in fields.items() if value is not None})

    return report

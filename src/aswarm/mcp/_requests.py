"""Requests to a server: calls of its tools, and requests that only read; and the questions of a server to the user (elicitation).

A lost call is repeated if that is safe, and errors become tool messages.

A callback, or a decision on the waiting call, answers a question. The module defines the data of the waiting call and the form
of the answers. With the protocol of 2026-07-28, a server returns its questions and a state. Later, any process can make the
call again, with the state and the answers. An older server waits for the answer during the call, so only a callback can answer
it.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeGuard, TypeVar

import anyio
from mcp import Client, MCPError
from mcp.types import (
    CallToolResult,
    ElicitRequest,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
    InputResponses,
)
from mcp.types import Tool as ServerTool
from pydantic import ValidationError

from aswarm._values.errors import CallerMistake, CallLost, ConfigurationError, Hold, ToolError, ToolTimeout
from aswarm._values.json import is_object, shown
from aswarm._values.messages import STARTED_INSIDE
from aswarm._values.text import NO_RUN
from aswarm.extensions import CallDecision, ToolCall, current_call, progress

from ._functions import Shown, may_repeat, value_of
from ._session import CallOutcome, Connection, ServerSession, SessionError, error_text, outcome_of

# The fields of the form as a dict, True to consent to a request without a form, or None to decline.
InputAnswer: TypeAlias = Mapping[str, Any] | bool | None
# The callback gets the message, and the whole request as JSON data, with "requestedSchema" for a form, or "url".
OnInput: TypeAlias = Callable[[str, dict[str, Any]], InputAnswer | Awaitable[InputAnswer]]

_DATA = {"requests", "state"}
_JSON: Any = {"by_alias": True, "mode": "json", "exclude_none": True}
_SHOWN = 120


def questions_in(result: InputRequiredResult, server: str) -> dict[str, ElicitRequest]:
    """Return the questions to the user, by their keys. Raises CallLost for a request of another kind."""
    questions: dict[str, ElicitRequest] = {}
    for key, request in (result.input_requests or {}).items():
        if not isinstance(request, ElicitRequest):
            raise CallLost(
                f"The MCP server {server} asks for {request.method}, which is not supported; the outcome of the call is unknown."
            )
        questions[key] = request
    return questions


def hold_of(questions: Mapping[str, ElicitRequest], state: str | None) -> Hold:
    """Return the Hold of a call that waits for the answers. With its data, any process can make the call again."""
    requests = {key: request.params.model_dump(**_JSON) for key, request in questions.items()}
    message = "; ".join(request.params.message for request in questions.values())
    # STARTED_INSIDE, because the server may have done something before its question.
    return Hold(message, data={"requests": requests, "state": state, STARTED_INSIDE: True})


def question_of(decided: CallDecision | None) -> Hold | None:
    """Return the Hold again if the user approved the call, but did not answer the question of the server."""
    data = None if decided is None or decided.is_answered else decided.data
    if not _is_question(data):
        return None
    return Hold("; ".join(request["message"] for request in data["requests"].values()), data=data)


def _is_question(data: object) -> TypeGuard[Mapping[str, Any]]:
    return is_object(data) and data.keys() >= _DATA


def responses_of(decided: CallDecision | None) -> tuple[InputResponses | None, str | None]:
    """Return the answers of the user and the state of the server. Both are None in the first request of a call.

    Raises ConfigurationError for an answer that does not fit the questions.
    """
    data = None if decided is None or not decided.is_answered else decided.data
    if decided is None or not _is_question(data):
        return None, None
    requests, answer = data["requests"], decided.answer
    if not (is_object(answer) and answer.keys() == requests.keys()):
        raise ConfigurationError(
            f"the answer {shown(answer, _SHOWN)} does not fit the questions of the MCP server; pass "
            f"Reply({{{', '.join(f'{key!r}: {{...}}' for key in requests)}}}), with the fields that `data` of the call lists, or None "
            "to decline"
        )
    return {key: response_of(value, requests[key]) for key, value in answer.items()}, data["state"]


def check_decision(call: ToolCall) -> None:
    """Raise ConfigurationError if the decision does not fit the call. A run checks all decisions before it runs a call."""
    try:
        responses_of(call.decision)
    except ConfigurationError as error:
        raise ConfigurationError(f"the call {call.id!r} of {call.name}: {error}") from error


def response_of(answer: Any, request: Mapping[str, Any]) -> ElicitResult:
    """Return the answer in the form of the protocol. A missing field gets the default of the form.

    Raises ConfigurationError if the value is not an answer, or if a field does not have a simple type.
    """
    if answer is None or answer is False:
        return ElicitResult(action="decline")
    fields = request.get("requestedSchema", {}).get("properties", {})
    content = {name: field["default"] for name, field in fields.items() if "default" in field}
    content = {**content, **answer} if is_object(answer) else content if answer is True else answer
    try:
        return ElicitResult(action="accept", content=content or None)
    except ValueError as error:
        raise ConfigurationError(
            "an answer to an MCP server must be a dict of texts, numbers, booleans and lists of texts, or None to decline, not "
            f"{shown(answer, _SHOWN)}"
        ) from error


async def ask(on_input: OnInput, params: ElicitRequestParams) -> ElicitResult:
    """Call the callback, and return its answer in the form of the protocol. Raises the errors of `response_of`."""
    request: dict[str, Any] = params.model_dump(**_JSON)
    answer = on_input(params.message, request)
    return response_of(await answer if inspect.isawaitable(answer) else answer, request)


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

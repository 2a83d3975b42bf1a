"""Questions of a server to the user during a call (elicitation). A callback, or a decision on the waiting call, answers them.

The module defines the data of the waiting call and the form of the answers. With the protocol of 2026-07-28, a server returns
its questions and a state. Later, any process can make the call again, with the state and the answers. An older server waits for
the answer during the call, so only a callback can answer it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeGuard

from mcp.types import ElicitRequest, ElicitRequestParams, ElicitResult, InputRequiredResult, InputResponses

from aswarm._values.errors import CallLost, ConfigurationError, Hold
from aswarm._values.json import is_object, shown
from aswarm._values.messages import STARTED_INSIDE
from aswarm.extensions import CallDecision, ToolCall

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

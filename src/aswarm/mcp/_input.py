"""What a server asks of the user in the middle of a call, and the answers: as a call that waits, or by a callback.

Decides the form of the data that a waiting call has, and the form of the answers. A server of the protocol of 2026-07-28
returns its requests and a state of its own. The call is then made again with the answers, from any process. An older server
waits for the answer during the call, so only a callback can answer it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from mcp.types import ElicitRequest, ElicitRequestParams, ElicitResult, InputRequiredResult, InputResponses

from aswarm._errors import ConfigurationError, Hold, ToolError
from aswarm._json import is_object, shown
from aswarm._run.plan import Decided, ToolCall

# Gets the message, and all of the request as JSON data: "requestedSchema" of a form, or "url". Returns the fields of the
# form as a dict, True to consent where there is no form, or None to decline.
InputAnswer: TypeAlias = Mapping[str, Any] | bool | None
OnInput: TypeAlias = Callable[[str, dict[str, Any]], InputAnswer | Awaitable[InputAnswer]]

_DATA = {"requests", "state"}
_JSON: Any = {"by_alias": True, "mode": "json", "exclude_none": True}
_SHOWN = 120


def questions_in(result: InputRequiredResult, server: str) -> dict[str, ElicitRequest]:
    """The questions to the user, by their keys. Raises ToolError for a request of another kind, which aswarm has not offered."""
    questions: dict[str, ElicitRequest] = {}
    for key, request in (result.input_requests or {}).items():
        if not isinstance(request, ElicitRequest):
            raise ToolError(f"The MCP server {server} asks for {request.method}, which is not supported.")
        questions[key] = request
    return questions


def hold_of(questions: Mapping[str, ElicitRequest], state: str | None) -> Hold:
    """The Hold of a call that waits for the answers. Its data has everything that another process needs to make the call again."""
    requests = {key: request.params.model_dump(**_JSON) for key, request in questions.items()}
    message = "; ".join(request.params.message for request in questions.values())
    return Hold(message, data={"requests": requests, "state": state})


def responses_of(decided: Decided | None) -> tuple[InputResponses | None, str | None]:
    """The answers of the user, and the state of the server. Both are None for a call that is made for the first time.

    Raises ConfigurationError for an answer that does not fit the questions.
    """
    data = None if decided is None or not decided.is_answered else decided.data
    if decided is None or not (is_object(data) and set(data) == _DATA):
        return None, None
    requests, answer = data["requests"], decided.answer
    if not (is_object(answer) and answer.keys() == requests.keys()):
        raise ConfigurationError(
            f"the answer {shown(answer, _SHOWN)} does not fit the questions of the MCP server; pass "
            f"Answer({{{', '.join(f'{key!r}: {{...}}' for key in requests)}}}), with the fields that `data` names, or None to decline"
        )
    return {key: response_of(value, requests[key]) for key, value in answer.items()}, data["state"]


def check_decision(call: ToolCall, earlier: Decided) -> None:
    """Raise ConfigurationError if the decision does not fit the call. The run asks it before it runs any call."""
    try:
        responses_of(call.decided or earlier)
    except ConfigurationError as error:
        raise ConfigurationError(f"the call {call.id!r} of {call.name}: {error}") from error


def response_of(answer: Any, request: Mapping[str, Any]) -> ElicitResult:
    """The answer in the form of the protocol. A field that it leaves out gets the default of the form.

    Raises ConfigurationError for a value that is no answer, and for fields that are not of simple types.
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
            f"an answer to an MCP server is a dict of texts, numbers, booleans and lists of texts, or None to decline, not "
            f"{shown(answer, _SHOWN)}"
        ) from error


async def ask(on_input: OnInput, params: ElicitRequestParams) -> ElicitResult:
    """Ask the callback, and return its answer in the form of the protocol. Raises ConfigurationError as `response_of` does."""
    request: dict[str, Any] = params.model_dump(**_JSON)
    answer = on_input(params.message, request)
    return response_of(await answer if inspect.isawaitable(answer) else answer, request)

"""What a server asks of the user in the middle of a call, and the answers: as a call that waits, or by a callback.

Decides the form of the data that a waiting call has, and of the answers. A server of the protocol of 2026-07-28 returns its
requests and a state of its own, and the call is made again with the answers, from any process. Older servers wait for the
answer: there, only a callback can give it.
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
_SHOWN = 120


def elicitations(result: InputRequiredResult, server: str) -> dict[str, ElicitRequest]:
    """The questions to the user. Raises ToolError for a request of another kind, which no client here has offered."""
    asked: dict[str, ElicitRequest] = {}
    for key, request in (result.input_requests or {}).items():
        if not isinstance(request, ElicitRequest):
            raise ToolError(f"The MCP server {server} asks for {request.method}, which is not supported.")
        asked[key] = request
    return asked


def hold_of(asked: Mapping[str, ElicitRequest], state: str | None) -> Hold:
    """What the call waits for: all that another process needs to make it again."""
    requests = {key: request.params.model_dump(**_JSON) for key, request in asked.items()}
    return Hold("; ".join(each.params.message for each in asked.values()), data={"requests": requests, "state": state})


def given(decided: Decided | None) -> tuple[InputResponses | None, str | None]:
    """The answers of the user, and the state of the server, for the call; None where it is made for the first time.

    Raises ConfigurationError for an answer that does not fit the questions.
    """
    data = None if decided is None or not decided.is_answered else decided.data
    if decided is None or not (is_object(data) and set(data) == _DATA):
        return None, None
    requests, answer = data["requests"], decided.answer
    if not (is_object(answer) and answer.keys() == requests.keys()):
        raise ConfigurationError(
            f"the answer {shown(answer, _SHOWN)} does not fit what the MCP server asks; pass "
            f"Answer({{{', '.join(f'{key!r}: {{...}}' for key in requests)}}}), with the fields that `data` names, or None to decline"
        )
    return {key: response_of(value, requests[key]) for key, value in answer.items()}, data["state"]


def check_decision(call: ToolCall, earlier: Decided) -> None:
    """Raise ConfigurationError if the call cannot take the decision, so that nothing runs beside it."""
    try:
        given(call.decided or earlier)
    except ConfigurationError as error:
        raise ConfigurationError(f"the call {call.id!r} of {call.name}: {error}") from error


def response_of(answer: Any, request: Mapping[str, Any]) -> ElicitResult:
    """An answer as the protocol has it, with the form's own values for the fields that it leaves out.

    Raises ConfigurationError for another value, or fields that are not of simple types.
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
    """Ask by the callback."""
    request: dict[str, Any] = params.model_dump(**_JSON)
    answer = on_input(params.message, request)
    return response_of(await answer if inspect.isawaitable(answer) else answer, request)


_JSON: Any = {"by_alias": True, "mode": "json", "exclude_none": True}

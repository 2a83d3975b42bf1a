"""Functions for all endpoints: authenticate, read the body of a request, return errors as responses, and start a run.

Security: The state that a client sends sets only the context variables in `client_context`.

Security: A client chooses a model, or changes other context variables, only if the program allows it with `Playground`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from aswarm._providers.openai import is_responses
from aswarm._record.entries import as_json
from aswarm._swarm import AsyncSwarm
from aswarm._values.errors import AswarmError, ConfigurationError, RunError
from aswarm._values.json import is_object, jsonable, shown
from aswarm._values.messages import Message, text_of
from aswarm._values.text import NO_RUN
from aswarm.runs import ClientTool, InvalidRequest, NewRun, RequestRefused, Run, RunActive
from aswarm.serve.wires.requests import ClientRequest, NewMessage

from ._responses import LogStream, Wire, while_connected
from ._served import Served

logger = logging.getLogger("aswarm")
_MOST_TOLD = 100  # names are texts of clients

# The HTTP statuses of the codes of a `RequestRefused`. Any other code is 400.
STATUSES = {
    **dict.fromkeys(("run_not_found", "conversation_not_found", "agent_not_found", "model_not_found"), 404),
    **dict.fromkeys(("run_active", "call_not_open", "arguments_changed", "interrupt_open"), 409),
    **dict.fromkeys(("nothing_new", "conflict"), 409),
    **dict.fromkeys(("invalid_request", "key_reused", "run_missing", "answers_missing", "not_an_approval"), 422),
    **dict.fromkeys(("unknown_key", "unsupported_part", "unsupported_context"), 422),
    "too_many_runs": 429,
    "service_full": 503,
    "shutting_down": 503,
}


# --- errors and JSON as responses ---


class Refusal(AswarmError):  # noqa: N818 - not an error of the service
    """A refused request. `extra`: more fields of the error in the body, next to the code and the message."""

    def __init__(
        self,
        status_code: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status_code = status_code
        self.code = code
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})


def refusal_of(error: AswarmError) -> Refusal:
    """Return the refusal for an error of `Runs` or of a store. Do not pass a ConfigurationError: it is a fault of the service."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RequestRefused):
        retry_after: float | None = getattr(error, "retry_after", None)
        headers = {} if retry_after is None else {"retry-after": str(retry_after)}
        extra = {"run": error.run_id} if isinstance(error, RunActive) else {}
        if isinstance(error, InvalidRequest) and error.param is not None:
            extra = {"param": error.param}
        return Refusal(STATUSES.get(error.code, 400), error.code, str(error), headers=headers, extra=extra)
    return Refusal(503, "unavailable", "the service cannot do this now; try again later", headers={"retry-after": "5"})


def refusal_response(refusal: Refusal) -> Response:
    """Return the response `{"error": {"code", "message", ...}}`."""
    content = {"error": {"code": refusal.code, "message": str(refusal), **refusal.extra}}
    return json_response(content, refusal.status_code, refusal.headers)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response that no cache stores."""
    # "nosniff": a browser must not show texts of models and users as a page.
    all_headers = {"cache-control": "no-store", "x-content-type-options": "nosniff", **(headers or {})}
    return Response(as_json(jsonable(content)), status, all_headers, "application/json")


def place_of(request: Request, path: str) -> str:
    """Return the header `Location` for a path of the service. An app may have mounted the service below another path.

    `path`: the path, already quoted.
    """
    return f"{quote(request.scope.get('root_path', ''))}{path}"


# --- endpoints ---


def endpoint(
    service: Served,
    handler: Callable[[Served, Request, str], Awaitable[Response]],
    refuse: Callable[[Refusal], Response] = refusal_response,
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint for Starlette. `refuse` makes the error response in the form of the protocol."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(service, request, await require_user(service, request))
        except HTTPException:  # `auth` and `context` may raise it, and Starlette makes the response
            raise
        except Exception as error:  # noqa: BLE001 - logged
            return refuse(_refusal(request, error))

    return answer


def _refusal(request: Request, error: Exception) -> Refusal:
    """Return the refusal for any error. If the service is at fault, the text of the error is only logged."""
    if isinstance(error, ConfigurationError) or not isinstance(error, AswarmError):
        logger.error("an endpoint failed: %s %s", request.method, request.url.path, exc_info=error, extra=NO_RUN)
        return Refusal(500, "internal", "the service failed; see its log for the cause")
    refusal = refusal_of(error)
    if refusal.status_code == 503:  # noqa: PLR2004 - not a mistake of the client
        logger.warning("refused a request: %s", error, extra=NO_RUN)
    return refusal


async def error_response(request: Request, error: Exception) -> Response:
    """Return the response for an error of `Runs` or of a store. It is an exception handler for your own Starlette or FastAPI app.

        for kind in (RequestRefused, StoreError):
            app.add_exception_handler(kind, error_response)

    A service responds in the same way: with the status of its code, and `{"error": {"code", "message"}}`. For RunActive, the
    error also has `run`, the id of the active run.
    """
    return refusal_response(_refusal(request, error))


async def require_user(service: Served, request: Request) -> str:
    """Return the user of the request.

    Raises Refusal (401) if there is none, ConfigurationError for a wrong return value of `auth`.
    """
    user: Any = service.auth(request)
    if inspect.isawaitable(user):
        user = await user
    if user is not None and not isinstance(user, str):
        raise ConfigurationError(f"auth must return the id of a user, a str or None, not {shown(user, 100)}")
    if not user:
        cause = getattr(request.state, "why_not_local", None)
        text = "this request has no valid user" if cause is None else f"this request has no valid user: {cause}"
        # RFC 9110, section 15.5.2: a 401 must have this header.
        raise Refusal(401, "unauthorized", text, headers={"www-authenticate": "Bearer"})
    return user


async def read_json(request: Request, limit: int) -> Any:
    """Return the JSON data in the body of a request. Raises Refusal with the status 400, 413, 415 or 422.

    The content type must be JSON: a browser sends JSON from a page of another origin only after a preflight request.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Refusal(415, "not_json", "send JSON, with the content type application/json")
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece  # counted here, because Content-Length may be missing
            if len(body) > limit:
                raise Refusal(413, "too_large", f"the request has more than {limit} bytes")
    except ClientDisconnect as error:
        raise Refusal(400, "incomplete", "the client disconnected before the end of the body") from error
    try:
        return from_json(bytes(body), allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(422, "invalid_request", f"the body is not JSON: {error}") from error


def stream(service: Served, run: Run, wire: Wire, headers: Mapping[str, str] | None = None) -> LogStream:
    """Return the response that streams a run to the client."""
    return LogStream(run, wire, heartbeat_seconds=service.heartbeat_seconds, show=service.show, headers=headers)


async def start(service: Served, request: Request, new: NewRun) -> Run:
    """Start a run. If the client disconnects while it waits for an earlier run, start nothing.

    The client would not get the id of the new run, and could not find the run.
    """
    async with while_connected(request.receive):
        try:
            return await service.runs.start(new)
        except OSError as error:  # of a hook of the user, such as a store of their own
            raise RunError(f"the runs cannot be reached: {error}") from error
    # 499 is nginx's status for a client that has disconnected.
    raise Refusal(499, "client_gone", "the client disconnected before its run started; no run was started")


async def new_run(
    service: Served, request: Request, user: str, asked: ClientRequest, conversation: str, *, agent: str | None = None
) -> NewRun:
    """Return the requested run of a conversation. `agent`: the agent of the route."""
    check_messages(service, asked.messages)
    if not (asked.messages or asked.answers or asked.regenerate or asked.continues):
        raise Refusal(
            422, "invalid_request", "the request must have a message of the user, or an answer to an open call"
        )
    check_permissions(service, asked)
    state = dict(asked.state or {})
    tell_left_out(service, [*asked.left_out, *(f"state.{key}" for key in state if key not in service.client_context)])
    return NewRun(
        user,
        conversation,
        [message.message for message in asked.messages],
        answers=asked.answers,
        strict=asked.strict,
        regenerate=asked.regenerate,
        agent=asked.agent if agent is None else agent,
        continues=asked.continues,
        key=idempotency_key(request),
        context_variables=await first_context(service, request),
        client_context={key: value for key, value in state.items() if key in service.client_context},
        context_edit=asked.context_edit,
        tools=client_tools(service, asked.tools),
        model=asked.model,
        notes=notes_of(service, asked.notes),
        on_disconnect=service.on_disconnect,
        # An edit is refused beside an active run, which may change the context.
        while_running="refuse" if asked.context_edit is not None else service.while_running,
    )


async def first_context(service: Served, request: Request) -> Mapping[str, Any] | None:
    """Return the context variables of a new conversation, from `context` of the service."""
    if service.context is None:
        return None
    return await service.context(request)


def check_permissions(service: Served, asked: ClientRequest) -> None:
    """Raise Refusal with 403 if the request has a model or a change of the context that the service does not allow."""
    page = service.page
    if asked.model is not None and not (page is not None and page.allows(asked.model)):
        text = (
            f"the service does not let clients choose the model {shown(asked.model, 100)}; see `Playground(models=...)`"
        )
        raise Refusal(403, "not_allowed", text)
    if asked.context_edit is not None and not (page is not None and page.context_edits):
        text = "the service does not let clients change the context variables; see `Playground(context_edits=True)`"
        raise Refusal(403, "not_allowed", text)


def check_messages(service: Served, messages: Iterable[NewMessage]) -> None:
    """Raise Refusal with 413 for a message that is too long, InvalidRequest for a part that the model's API does not have."""
    limit = service.text_characters
    for message in messages:
        if len(text_of(message.content)) > limit:
            raise Refusal(413, "too_large", f"a message has more than {limit} characters")
        kinds = [part.get("type") for part in message.content if is_object(part)]
        if "input_audio" in kinds and uses_responses(service.runs.swarm):
            place = f"{message.place}[{kinds.index('input_audio')}]"
            text = (
                f"{place} is a sound, which the Responses API does not take; this service calls its model over that API"
            )
            raise InvalidRequest(text, code="unsupported_part", param=place)
        if message.name is not None and uses_responses(service.runs.swarm):
            tell_left_out(service, ["the name of a message, which the Responses API does not have"])


def client_tools(service: Served, tools: Sequence[ClientTool]) -> Sequence[ClientTool]:
    """Return the tools of a client that the model may call."""
    if service.client_tools == "offer":
        return tools
    tell_left_out(service, ["tools"] if tools else [])
    return ()


def notes_of(service: Served, notes: Sequence[str]) -> Sequence[Message]:
    """Return the texts of a client about its page as messages for each request. Raises InvalidRequest if they are refused."""
    if not notes:
        return ()
    if service.agui_context == "refuse":
        text = (
            'context[0]: this service does not take the context of a page; the option agui_context="message" of the service '
            "gives it to the model"
        )
        raise InvalidRequest(text, code="unsupported_context", param="context[0]")
    text = "The page of the user shows:\n" + "\n".join(f"- {note}" for note in notes)
    limit = service.text_characters
    if len(text) > limit:
        raise Refusal(413, "too_large", f"the context has more than {limit} characters")
    return [{"role": "system" if service.agui_context == "system" else "user", "content": text}]


def tell_left_out(service: Served, names: Iterable[str]) -> None:
    """Log what the service does not use of a request: each name once, because clients send it with each request."""
    new = [name for name in dict.fromkeys(names) if name not in service.left_out]
    if new and len(service.left_out) < _MOST_TOLD:
        service.left_out.update(new)
        logger.warning("the service does not use these parts of requests: %s", shown(", ".join(new), 500), extra=NO_RUN)


def idempotency_key(request: Request) -> str | None:
    """Return the `Idempotency-Key` of a request. Raises Refusal if it is empty or too long."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 255:  # noqa: PLR2004 - a limit of this service
        raise Refusal(422, "invalid_request", "an Idempotency-Key must have 1 to 255 characters")
    return key


async def last_run(service: Served, user: str, conversation: str) -> Run | None:
    """Return the newest run of a conversation of the user."""
    records = await service.runs.list(user=user, conversation=conversation, limit=1)
    return await service.runs.get_run(records[0].id, user=user) if records else None


def uses_responses(swarm: AsyncSwarm) -> bool:
    """Return whether the swarm sends its requests to the Responses API. False if only a request would show it."""
    return is_responses(swarm._source_of(swarm._open_client()))

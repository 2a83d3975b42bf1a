"""What every endpoint shares: the user of the request, and errors as answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from aswarm._errors import AswarmError, ConfigurationError, RunError
from aswarm._messages import text_of
from aswarm._run.handlers import NO_RUN

from ._auth import user_of
from ._http import Refusal, error_response, refusal_of
from ._requests import ClientRequest, NewMessage, RequestError
from ._responses import Encoder, FrameReader, RunStream, while_connected
from ._runs import NewRun, Run, RunRecord

if TYPE_CHECKING:
    from ._service import Service

logger = logging.getLogger("aswarm")

# An endpoint: the service, the request and the id of its user give an answer.
Handler: TypeAlias = "Callable[[Service, Request, str], Awaitable[Response]]"
_FAILED = Refusal(500, "internal", "the service has failed; its log says why")


def endpoint(
    service: Service, handler: Handler, refuse: Callable[[Refusal], Response] = error_response
) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint for Starlette. `refuse` gives errors the form that the clients of this route know."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(service, request, await require_user(service, request))
        except HTTPException:  # `auth` and `context` may answer as a route of Starlette does
            raise
        except ConfigurationError as error:
            return refuse(_failure(request, error))
        except (AswarmError, RequestError) as error:
            refusal = refusal_of(error)
            if refusal.status == 503:  # noqa: PLR2004 - the service cannot, whatever the client does
                logger.warning("a request was refused: %s", error, extra=NO_RUN)
            return refuse(refusal)
        except Exception as error:  # noqa: BLE001 - logged
            return refuse(_failure(request, error))

    return answer


def _failure(request: Request, error: Exception) -> Refusal:
    logger.error("an endpoint has failed: %s %s", request.method, request.url.path, exc_info=error, extra=NO_RUN)
    return _FAILED


async def require_user(service: Service, request: Request) -> str:
    """The user of the request. Raises Refusal with 401."""
    user = await user_of(request, service.auth)
    if user is None:
        raise Refusal(401, "unauthorized", "this request has no valid user", headers={"www-authenticate": "Bearer"})
    return user


def stream(
    service: Service, run: Run, encoder: Encoder, *, after: int = -1, headers: Mapping[str, str] | None = None
) -> RunStream:
    """The response that streams a run to this reader."""
    reader = FrameReader(
        run, encoder, after=after, heartbeat=service.heartbeat, show=service.show, draining=run.draining
    )
    return RunStream(run, reader, encoder, headers)


async def start(service: Service, request: Request, new: NewRun) -> Run:
    """Start a run. If the client goes while it waits for the run before it, none is started: the client was told of none."""
    records: list[RunRecord] = []

    async def work() -> None:
        try:
            records.append(await service.runs.start(new))
        except OSError as error:  # `while_connected` takes it for a client that has gone
            raise RunError(f"the runs cannot be reached: {error}") from error

    await while_connected(work, request.receive, None)
    return Run(service.runs, _first(records))


def _first(records: list[RunRecord]) -> RunRecord:
    if not records:
        raise Refusal(499, "client_gone", "the client went before its run had begun, so none was started")
    return records[0]


async def new_run(
    service: Service, request: Request, user: str, asked: ClientRequest, conversation: str, *, agent: str | None = None
) -> NewRun:
    """What a client asks for, as a run of a conversation of the user. `agent`: the one that the route names."""
    check_length(asked.messages, service.limits.text)
    if not (asked.messages or asked.answers or asked.regenerate or asked.continues):
        raise Refusal(
            422, "invalid_request", "the request has neither a message of the user nor an answer to an open call"
        )
    return NewRun(
        user,
        conversation,
        [message.message for message in asked.messages],
        asked.answers,
        asked.must_fit,
        asked.regenerate,
        asked.agent if agent is None else agent,
        continues=asked.continues,
        key=idempotency_key(request),
        context_variables=None if service.context is None else await service.context(request),
        client_context={key: value for key, value in (asked.state or {}).items() if key in service.client_context},
        tools=asked.tools if service.client_tools == "offer" else (),
        on_disconnect=service.on_disconnect,
        while_running=service.while_running,
    )


def check_length(messages: Iterable[NewMessage], limit: int) -> None:
    """Raise Refusal with 413 for a message that is too long."""
    for message in messages:
        if sum(len(text_of([part])) for part in _parts(message.content)) > limit:
            raise Refusal(413, "too_large", f"a message has more than {limit} characters")


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"text": content}] if isinstance(content, str) else content


def idempotency_key(request: Request) -> str | None:
    """The key with which a client sends a request again. Raises Refusal for one that is too long."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= 255:  # noqa: PLR2004 - as the draft of the header has it
        raise Refusal(422, "invalid_request", "an Idempotency-Key has 1 to 255 characters")
    return key


async def last_run(service: Service, user: str, conversation: str) -> Run | None:
    """The newest run of a conversation of the user."""
    records = await service.runs.list(user=user, conversation=conversation, limit=1)
    return Run(service.runs, await service.runs.get(records[0].id, user=user)) if records else None

"""The routes for clients of AG-UI: a run, and the way back to the last run of a thread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ._agui import VERSION, AguiWire
from ._agui_input import agui_request
from ._endpoints import endpoint, last_run, new_run, start, stream
from ._entries import as_json
from ._http import Refusal, read_json
from ._native import MEDIA_TYPE, data_frame
from ._responses import HEADERS
from ._runs import AnswersRefused

if TYPE_CHECKING:
    from ._service import Service

_KEY = "agui\n"  # what begins the idempotency keys of these runs; the thread and the run of the client follow


def agui_routes(service: Service) -> list[BaseRoute]:
    """The routes."""
    return [
        Route("/agui/{agent}", endpoint(service, _start), methods=["POST"]),
        Route("/agui/{agent}/{thread}/events", endpoint(service, _attach)),
    ]


async def _start(service: Service, request: Request, user: str) -> Response:
    asked = agui_request(await read_json(request, service.limits.body))
    thread, run_id = asked.conversation or "", asked.run_id or ""
    new = await new_run(service, request, user, asked, thread, agent=request.path_params["agent"])
    key = f"{_KEY}{thread}\n{run_id}" if new.key is None else new.key
    try:
        run = await start(service, request, replace(new, key=key, open_calls_first=True))
    except AnswersRefused as error:
        return _refused(thread, run_id, error)
    # Answers in `resume` must fit; others are the results that the client has in its messages.
    known = () if asked.must_fit else [answer.call for answer in asked.answers]
    wire = AguiWire(thread_id=thread, run_id=run_id, protocol_version=asked.protocol_version, known=known)
    return stream(service, run, wire)


def _refused(thread: str, run_id: str, error: AnswersRefused) -> Response:
    """The protocol wants such an error as a stream."""
    events: list[dict[str, Any]] = [
        {"type": "RUN_STARTED", "threadId": thread, "runId": run_id, "protocolVersion": VERSION},
        {"type": "RUN_ERROR", "message": str(error), "code": error.code},
    ]
    body = b"".join(data_frame(as_json(event)) for event in events)
    return Response(body, media_type=MEDIA_TYPE, headers=HEADERS)


async def _attach(service: Service, request: Request, user: str) -> Response:
    thread = request.path_params["thread"]
    run = await last_run(service, user, thread)
    if run is None:
        raise Refusal(404, "run_not_found", "the thread has no run")
    key = run.record.key or ""
    run_id = key.rpartition("\n")[2] if key.startswith(_KEY) else None
    return stream(service, run, AguiWire(thread_id=thread, run_id=run_id))

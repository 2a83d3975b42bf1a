"""Routes for clients of AG-UI: start a run, and reconnect to the last run of a thread."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aswarm._record.entries import as_json
from aswarm.runs import AnswersRefused
from aswarm.serve._endpoints import Refusal, endpoint, last_run, new_run, read_json, start, stream
from aswarm.serve._responses import HEADERS
from aswarm.serve._served import Served
from aswarm.serve.wires.turns import MEDIA_TYPE, data_frame

from .encoder import VERSION, AGUIWire
from .input import agui_request, results_in

_KEY = "agui\n"  # the idempotency key of these runs is this prefix, the thread id and the run id of the client


def agui_routes(service: Served) -> list[BaseRoute]:
    """Return the routes of AG-UI."""
    return [
        Route("/agui/{agent}", endpoint(service, _start), methods=["POST"]),
        Route("/agui/{agent}/{thread}/events", endpoint(service, _attach)),
    ]


async def _start(service: Served, request: Request, user: str) -> Response:
    asked = agui_request(await read_json(request, service.body_bytes))
    thread, run_id = asked.conversation or "", asked.run_id or ""
    new = await new_run(service, request, user, asked, thread, agent=request.path_params["agent"])
    key = f"{_KEY}{thread}\n{run_id}" if new.key is None else new.key
    try:
        run = await start(service, request, replace(new, key=key, open_calls_first=True))
    except AnswersRefused as error:
        return _refused(thread, run_id, error)
    # A repeated request gets the whole run again, so the client must drop the messages that it has of this run. Their ids
    # start with the id of the run.
    others = [message for message in asked.shown if not str(message.get("id")).startswith(f"{run.id}-")]
    wire = AGUIWire(
        thread_id=thread,
        run_id=run_id,
        protocol_version=asked.protocol_version,
        # Without `resume`, the answers are results that the client has sent. These results must not be sent back.
        known=() if asked.strict else [answer.call_id for answer in results_in(others)],
        snapshot=others if len(others) < len(asked.shown) else None,
    )
    return stream(service, run, wire)


def _refused(thread: str, run_id: str, error: AnswersRefused) -> Response:
    """Return the error as a stream, as the protocol requires."""
    events: list[dict[str, Any]] = [
        {"type": "RUN_STARTED", "threadId": thread, "runId": run_id, "protocolVersion": VERSION},
        {"type": "RUN_ERROR", "message": str(error), "code": error.code},
    ]
    body = b"".join(data_frame(as_json(event)) for event in events)
    return Response(body, media_type=MEDIA_TYPE, headers=HEADERS)


async def _attach(service: Served, request: Request, user: str) -> Response:
    thread = request.path_params["thread"]
    run = await last_run(service, user, thread)
    if run is None:
        raise Refusal(404, "run_not_found", "the thread has no run")
    key = run.record.key or ""
    run_id = key.rpartition("\n")[2] if key.startswith(_KEY) else run.id
    return stream(service, run, AGUIWire(thread_id=thread, run_id=run_id))

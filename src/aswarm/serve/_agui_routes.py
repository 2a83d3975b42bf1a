"""The routes for clients of AG-UI: a run, and the way back to the last run of a thread."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aswarm._decisions import waiting_entries
from aswarm.conversations import Stored

from ._agui import VERSION, AguiWire
from ._agui_input import agui_request
from ._driving import conversation_key
from ._endpoints import endpoint, last_run, new_run, stream
from ._entries import as_json
from ._http import Refusal, read_json
from ._native import MEDIA_TYPE, data_frame
from ._requests import ClientRequest
from ._responses import HEADERS
from ._runs import AnswersRefused, NewRun, Run

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
    try:
        new = await _beside_interrupts(service, asked, new)
        record = await service.runs.start(_with_key(new, f"{_KEY}{thread}\n{run_id}"))
    except AnswersRefused as error:
        return _refused(thread, run_id, error)
    # Answers in `resume` must fit; others are the results that the client has in its messages.
    known = () if asked.must_fit else [answer.call for answer in asked.answers]
    wire = AguiWire(thread_id=thread, run_id=run_id, protocol_version=asked.protocol_version, known=known)
    return stream(service, Run(service.runs, record), wire)


def _with_key(new: NewRun, key: str) -> NewRun:
    return new if new.key is not None else replace(new, key=key)


async def _beside_interrupts(service: Service, asked: ClientRequest, new: NewRun) -> NewRun:
    """The run as asked. Raises AnswersRefused for a new message while an interrupt is open, as the protocol has it.

    A client that resumes may send its history without the message of the assistant: a message that the thread has is not new.
    """
    if not asked.messages:
        return new
    stored = await service.store.load(conversation_key(new.user, str(new.conversation))) or Stored("")
    if not (asked.answers and asked.must_fit):
        if stored.waiting and waiting_entries(stored.messages):
            raise AnswersRefused("the thread has an open interrupt; send `resume` first", "interrupt_open", 409)
        return new
    known = [message["content"] for message in stored.messages if message["role"] == "user"]
    if any(message["content"] not in known for message in new.messages):
        raise AnswersRefused(
            "a request with `resume` cannot have a new message; send the message once the resumed run has ended",
            "interrupt_open",
            409,
        )
    return replace(new, messages=())


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

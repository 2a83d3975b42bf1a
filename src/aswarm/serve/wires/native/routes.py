"""Native routes: start, list, read, stream and cancel runs of the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aswarm.runs import DisconnectPolicy, Run
from aswarm.runs.executors import invalid
from aswarm.serve._endpoints import endpoint, json_response, new_run, place_of, read_json, start, stream
from aswarm.serve._own_routes import respond
from aswarm.serve._served import Served

from .wire import NativeWire, native_request

_LONGEST_SECONDS = 365 * 86400.0


def native_routes(service: Served) -> list[BaseRoute]:
    """Return the native routes."""
    return [
        Route("/conversations/{conversation}/runs", endpoint(service, _start), methods=["POST"]),
        Route("/runs", endpoint(service, _list)),
        Route("/runs/{run}", endpoint(service, _get)),
        Route("/runs/{run}/events", endpoint(service, _events)),
        Route("/runs/{run}/cancel", endpoint(service, _cancel), methods=["POST"]),
    ]


async def _start(service: Served, request: Request, user: str) -> Response:
    body = await read_json(request, service.body_bytes)
    asked = native_request(body)
    new = await new_run(service, request, user, asked, request.path_params["conversation"])
    run = await start(service, request, replace(new, on_disconnect=_policy(body, service)))
    headers = {"location": _place(request, run, "/events")}
    if "text/event-stream" in request.headers.get("accept", ""):
        return stream(service, run, NativeWire(), headers)
    content = {"run": run.id, "conversation": run.conversation, "events": headers["location"]}
    return json_response(content, 202 if run.record.is_new else 200, headers)


def _policy(body: Any, service: Served) -> DisconnectPolicy:
    value = body.get("on_disconnect")
    if value is None:
        return service.on_disconnect
    most = service.runs.limits.run_seconds
    is_seconds = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= (_LONGEST_SECONDS if most is None else most)
    )
    if not (is_seconds or value in ("finish", "cancel")):
        raise invalid("on_disconnect", '"finish", "cancel" or a number of seconds', value)
    policy: DisconnectPolicy = value
    return policy


def _place(request: Request, run: Run, more: str = "") -> str:
    return place_of(request, f"/runs/{quote(run.id, safe='')}{more}")


async def _list(service: Served, request: Request, user: str) -> Response:
    conversation = request.query_params.get("conversation")
    records = await service.runs.list(user=user, conversation=conversation)
    return json_response({"runs": [record.to_dict() for record in records]})


async def _get(service: Served, request: Request, user: str) -> Response:
    return json_response(await _state(service, request, await _run(service, request, user)))


async def _run(service: Served, request: Request, user: str) -> Run:
    return await service.get_run(request.path_params["run"], user=user)


async def _state(service: Served, request: Request, run: Run) -> dict[str, Any]:
    """Return a run as JSON data. After the end of the run, the data include its last entry."""
    state: dict[str, Any] = {**run.record.to_dict(), "events": _place(request, run, "/events")}
    if not run.record.is_running:
        shown = [service.show(entry) for entry in await run.read(run.record.last - 1)]
        state["result"] = next((entry.to_dict() for entry in shown if entry is not None), None)
    return state


async def _cancel(service: Served, request: Request, user: str) -> Response:
    run = await _run(service, request, user)
    await run.cancel()
    return json_response(await _state(service, request, await _run(service, request, user)))


async def _events(service: Served, request: Request, user: str) -> Response:
    run = await _run(service, request, user)
    return respond(run, NativeWire(), request, heartbeat_seconds=service.heartbeat_seconds, show=service.show)

"""The native routes: runs and conversations of the user."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from ._agui_routes import agui_routes
from ._conversation_routes import conversation_routes
from ._endpoints import endpoint, new_run, start, stream
from ._http import Refusal, error_response, json_response, place_of, read_json
from ._native import NativeWire, native_request
from ._openai_routes import openai_error, openai_routes
from ._own_routes import has_all, position_of
from ._page_routes import page_routes
from ._requests import invalid
from ._runs import DisconnectPolicy, Run
from ._vercel_routes import vercel_routes

if TYPE_CHECKING:
    from ._service import Service


def routes_of(service: Service) -> list[BaseRoute]:
    """All routes of a service."""
    return [
        Route("/health", _health_of(service)),
        Route("/conversations/{conversation}/runs", endpoint(service, _start), methods=["POST"]),
        Route("/runs", endpoint(service, _list)),
        Route("/runs/{run}", endpoint(service, _get)),
        Route("/runs/{run}/events", endpoint(service, _events)),
        Route("/runs/{run}/cancel", endpoint(service, _cancel), methods=["POST"]),
        *conversation_routes(service),
        *(agui_routes(service) if "agui" in service.wires else ()),
        *(vercel_routes(service) if "vercel" in service.wires else ()),
        *(openai_routes(service) if "openai" in service.wires else ()),
        *page_routes(service),
    ]


def refuse(scope: Scope, refusal: Refusal) -> Response:
    """The answer to a request that no endpoint gets, in the form that the clients of its path read."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return (openai_error if path.startswith("/v1/") else error_response)(refusal)


async def not_here(request: Request, error: Exception) -> Response:
    """The answer for an unknown path, or a method that its route does not have."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    code = {404: "not_found", 405: "method_not_allowed"}[error.status_code]
    text = f"there is no {request.method} {request.url.path} here; see the routes in the documentation"
    return refuse(request.scope, Refusal(error.status_code, code, text, headers=error.headers))


def _health_of(service: Service) -> Any:
    async def health(request: Request) -> Response:
        if service.runs.draining.is_set:
            return json_response({"status": "draining"}, 503, {"retry-after": "1"})
        return json_response({"status": "ok"})

    return health


async def _start(service: Service, request: Request, user: str) -> Response:
    body = await read_json(request, service.limits.body)
    asked = native_request(body)
    new = await new_run(service, request, user, asked, request.path_params["conversation"])
    run = await start(service, request, replace(new, on_disconnect=_policy(body, service)))
    headers = {"location": _place(request, run, "/events")}
    if "text/event-stream" in request.headers.get("accept", ""):
        return stream(service, run, NativeWire(), headers=headers)
    content = {"run": run.id, "conversation": run.conversation, "events": headers["location"]}
    return json_response(content, 202 if run.record.is_new else 200, headers)


def _policy(body: Any, service: Service) -> DisconnectPolicy:
    given = body.get("on_disconnect")
    if given is None:
        return service.on_disconnect
    is_seconds = isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= service.limits.seconds
    if not (is_seconds or given in ("finish", "cancel")):
        raise invalid("on_disconnect", '"finish", "cancel" or a number of seconds', given)
    policy: DisconnectPolicy = given
    return policy


def _place(request: Request, run: Run, more: str = "") -> str:
    return place_of(request, f"/runs/{quote(run.id, safe='')}{more}")


async def _list(service: Service, request: Request, user: str) -> Response:
    conversation = request.query_params.get("conversation")
    records = await service.runs.list(user=user, conversation=conversation)
    return json_response({"runs": [record.to_dict() for record in records]})


async def _get(service: Service, request: Request, user: str) -> Response:
    return json_response(await _state(service, request, await _run(service, request, user)))


async def _run(service: Service, request: Request, user: str) -> Run:
    return await service.run(request.path_params["run"], user=user)


async def _state(service: Service, request: Request, run: Run) -> dict[str, Any]:
    """A run as JSON; with its last entry, if it has ended."""
    state: dict[str, Any] = {**run.record.to_dict(), "events": _place(request, run, "/events")}
    if not run.record.is_running:
        shown = [service.show(entry) for entry in await run.read(run.record.last - 1)]
        state["result"] = next((entry.to_dict() for entry in shown if entry is not None), None)
    return state


async def _cancel(service: Service, request: Request, user: str) -> Response:
    run = await _run(service, request, user)
    await run.cancel()
    return json_response(await _state(service, request, await _run(service, request, user)))


async def _events(service: Service, request: Request, user: str) -> Response:
    run = await _run(service, request, user)
    after = position_of(request)
    if has_all(run, after):
        return Response(status_code=204)  # without it, a browser's EventSource would ask without end
    return stream(service, run, NativeWire(), after=after)

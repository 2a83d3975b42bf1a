"""The routes for `useChat` of Vercel's AI SDK: a request, and the way back to a run that goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ._endpoints import endpoint, last_run, new_run, start, stream
from ._http import read_json
from ._vercel import VercelWire
from ._vercel_input import vercel_request

if TYPE_CHECKING:
    from ._service import Service


def vercel_routes(service: Service) -> list[BaseRoute]:
    """The routes."""
    return [
        Route("/chat/{agent}", endpoint(service, _start), methods=["POST"]),
        Route("/chat/{agent}/{conversation}/stream", endpoint(service, _resume)),
    ]


async def _start(service: Service, request: Request, user: str) -> Response:
    asked = vercel_request(await read_json(request, service.limits.body))
    agent = request.path_params["agent"]
    new = await new_run(service, request, user, asked, asked.conversation or "", agent=agent)
    return stream(service, await start(service, request, new), VercelWire())


async def _resume(service: Service, request: Request, user: str) -> Response:
    """The whole run so far, then live; 204 if no run goes on: the client asks whenever a page is loaded."""
    run = await last_run(service, user, request.path_params["conversation"])
    if run is None or not run.record.is_running:
        return Response(status_code=204)
    return stream(service, run, VercelWire())

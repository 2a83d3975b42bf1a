"""Routes for `useChat` of Vercel's AI SDK: start a run, and reconnect to a running run."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aswarm.serve._endpoints import endpoint, last_run, new_run, read_json, start, stream
from aswarm.serve._served import Served

from .encoder import VercelWire
from .input import vercel_request


def vercel_routes(service: Served) -> list[BaseRoute]:
    """Return the routes of Vercel's AI SDK."""
    return [
        Route("/chat/{agent}", endpoint(service, _start), methods=["POST"]),
        Route("/chat/{agent}/{conversation}/stream", endpoint(service, _resume)),
    ]


async def _start(service: Served, request: Request, user: str) -> Response:
    asked = vercel_request(await read_json(request, service.body_bytes))
    agent = request.path_params["agent"]
    new = await new_run(service, request, user, asked, asked.conversation or "", agent=agent)
    return stream(service, await start(service, request, new), VercelWire())


async def _resume(service: Served, request: Request, user: str) -> Response:
    """Stream the active run from its start. If no run is active, return 204: the client asks whenever a page loads."""
    run = await last_run(service, user, request.path_params["conversation"])
    if run is None or not run.record.is_running:
        return Response(status_code=204)
    return stream(service, run, VercelWire())

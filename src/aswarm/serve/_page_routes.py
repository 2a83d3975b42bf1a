"""The page to try the agents, and what it draws: static files, and the graph of the agents."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from aswarm.graph import Graph, agent_graph

from ._endpoints import endpoint
from ._http import json_response

if TYPE_CHECKING:
    from ._service import Service

FOLDER = Path(__file__).with_name("page")
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class _PageFiles(StaticFiles):
    """The files of the page, with headers that let it load nothing from elsewhere."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def page_routes(service: Service) -> list[BaseRoute]:
    """The graph; and the page, if the service has one. The files hold nothing of a user, and need none."""
    routes: list[BaseRoute] = [Route("/graph", endpoint(service, _graph))]
    if service.page and FOLDER.is_dir():
        files = _PageFiles(directory=FOLDER, html=True)
        routes += [Mount("/page", files), Mount("/", files)]
    return routes


async def _graph(service: Service, request: Request, user: str) -> Response:
    graphs = {name: _as_data(agent_graph(agent)) for name, agent in service.drivers.agents.items()}
    return json_response({"agents": list(graphs), "graphs": graphs})


def _as_data(graph: Graph) -> dict[str, Any]:
    nodes = [
        {"id": node.id, "name": node.agent.name, "label": node.label, "functions": list(node.functions)}
        for node in graph.agents
    ]
    return {"agents": nodes, "handoffs": [asdict(handoff) for handoff in graph.handoffs], "mermaid": graph.mermaid()}

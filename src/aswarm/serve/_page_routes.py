"""The page to try the agents, and what it draws: static files, and the graph of the agents with their prices."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from aswarm._agent import model_of
from aswarm._errors import ConfigurationError
from aswarm._messages import Message
from aswarm._run.prices import price_of
from aswarm._usage import Usage
from aswarm.graph import Graph, agent_graph

from ._conversation_routes import stored_conversation
from ._endpoints import endpoint
from ._http import json_response
from ._run_as_test import run_as_test

if TYPE_CHECKING:
    from ._service import Service

FOLDER = Path(__file__).with_name("page")
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
# Prices are asked for few tokens, because many at once may cost another price for each.
_TOKENS = 1_000


class _PageFiles(StaticFiles):
    """The files of the page, with headers that let it load nothing from elsewhere."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def page_routes(service: Service) -> list[BaseRoute]:
    """The graph; and the page, if the service has one. The files hold nothing of a user, and need none."""
    routes: list[BaseRoute] = [Route("/graph", endpoint(service, _graph))]
    if service.page:
        routes += [
            Route("/runs/{run}/test", endpoint(service, _test)),
            Route("/", _index),
            Mount("/page", _PageFiles(directory=FOLDER)),
        ]
    return routes


async def _index(request: Request) -> Response:
    return FileResponse(FOLDER / "index.html", headers=HEADERS)


async def _test(service: Service, request: Request, user: str) -> Response:
    """A run as the code of a test."""
    run = await service.run(request.path_params["run"], user=user)
    log = [entry async for entry in run.entries()]
    before: list[Message] = []
    if run.conversation is not None and (count := log[0].fields["before"]):
        before = (await stored_conversation(service, user, run.conversation)).messages[:count]
    return json_response({"test": run_as_test(log, before)})


async def _graph(service: Service, request: Request, user: str) -> Response:
    graphs = {name: agent_graph(agent) for name, agent in service.drivers.agents.items()}
    nodes = [node for graph in graphs.values() for node in graph.agents]
    default = service.drivers.swarm.model
    content = {
        "agents": list(graphs),
        "graphs": {name: _as_data(graph, default) for name, graph in graphs.items()},
        "prices": _prices(service, {model_of(node.agent, default) for node in nodes}),
    }
    return json_response(content)


def _as_data(graph: Graph, default_model: str) -> dict[str, Any]:
    nodes = [
        {
            "id": node.id,
            "name": node.agent.name,
            "label": node.label,
            "model": model_of(node.agent, default_model),
            "functions": list(node.functions),
        }
        for node in graph.agents
    ]
    return {"agents": nodes, "handoffs": [asdict(handoff) for handoff in graph.handoffs], "mermaid": graph.mermaid()}


def _prices(service: Service, models: Iterable[str]) -> dict[str, dict[str, float]]:
    """Dollars for a million tokens, by model. A model without a known price is left out."""
    found: dict[str, dict[str, float]] = {}
    for model in sorted(models):
        with suppress(ConfigurationError):
            found[model] = {
                "input": _price(service, model, Usage(prompt_tokens=_TOKENS)),
                "cached": _price(service, model, _cached()),
                "output": _price(service, model, Usage(completion_tokens=_TOKENS)),
            }
    return found


def _cached() -> Usage:
    return Usage(prompt_tokens=_TOKENS, details={"prompt_tokens_details": {"cached_tokens": _TOKENS}})


def _price(service: Service, model: str, usage: Usage) -> float:
    return float(price_of(model, usage, service.prices) * 1_000_000 / _TOKENS)

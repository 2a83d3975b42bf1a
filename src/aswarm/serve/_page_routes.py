"""Routes of the playground: its files, the graph of the agents, and the test of a run.

Security: The playground loads nothing from other hosts, and runs no text as code.

Security: Readers get the settings of agents only with `show_everything`, and never their extra headers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from anyio import to_thread
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from aswarm._record.entries import as_json
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent, model_of
from aswarm._values.errors import ToolError
from aswarm._values.json import jsonable
from aswarm._values.messages import Message
from aswarm._values.output import as_output
from aswarm._values.prices import price_table
from aswarm._values.text import NO_RUN
from aswarm.graph import Graph, agent_graph
from aswarm.guards._check import check_names
from aswarm.runs import show_everything
from aswarm.testing import run_as_test

from ._conversation_routes import stored_conversation
from ._endpoints import Refusal, endpoint, json_response, read_json
from ._served import Served

if TYPE_CHECKING:
    from aswarm.mcp import MCPServer

logger = logging.getLogger("aswarm")

_OF_PROMPT = {"name", "title", "description", "arguments"}
FOLDER = Path(__file__).with_name("page")
HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


class _PageFiles(StaticFiles):
    """Static files. Their headers forbid the page to load anything from another host."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def page_routes(service: Served) -> list[BaseRoute]:
    """Return the route of the graph and, if the service has the page, its routes. The files of the page need no user."""
    routes: list[BaseRoute] = [Route("/graph", endpoint(service, _graph))]
    if _has_tests(service):
        routes.append(Route("/runs/{run}/test", endpoint(service, _test)))
    if service.page is not None:
        routes.append(Route("/prompts", endpoint(service, _prompts)))
        routes.append(Route("/prompts", endpoint(service, _prompt), methods=["POST"]))
        routes += [Route("/", _index), Mount("/page", _PageFiles(directory=FOLDER))]
    return routes


def _has_tests(service: Served) -> bool:
    """Return whether readers get the tests of runs, which have the context variables and the texts of exceptions."""
    return service.page is not None and service.show is show_everything


async def _index(request: Request) -> Response:
    return FileResponse(FOLDER / "index.html", headers=HEADERS)


async def _test(service: Served, request: Request, user: str) -> Response:
    run = await service.get_run(request.path_params["run"], user=user)
    log = [entry async for entry in run.entries()]
    before: list[Message] = []
    if run.conversation is not None and (count := log[0].fields["before"]):
        before = (await stored_conversation(service, user, run.conversation)).messages[:count]
    agent = service.runs.known_agents.get(log[0].fields["agent"])
    return json_response({"test": run_as_test(log, before, agent)})


async def _prompts(service: Served, request: Request, user: str) -> Response:
    listed: list[dict[str, Any]] = []
    for server, opened in enumerate(_servers(service)):
        try:
            listed += [
                {"server": server, **each.model_dump(mode="json", include=_OF_PROMPT)}
                for each in await opened.prompts()
            ]
        except ToolError as error:  # the other servers still answer
            logger.warning("the playground does not show some prompts: %s", error, extra=NO_RUN)
    return json_response({"prompts": listed})


class _AskedPrompt(BaseModel, strict=True):
    server: Annotated[int, Field(ge=0)]
    name: str
    arguments: dict[str, str]


async def _prompt(service: Served, request: Request, user: str) -> Response:
    try:
        asked = _AskedPrompt.model_validate(await read_json(request, service.body_bytes))
        server = _servers(service)[asked.server]
    except (ValidationError, IndexError) as error:
        text = "expected `server`, a number of the list, `name`, and `arguments`, an object of texts"
        raise Refusal(422, "invalid_request", text) from error
    try:
        return json_response({"content": await server.prompt(asked.name, asked.arguments)})
    except ToolError as error:
        raise Refusal(502, "prompt_failed", str(error)) from error


def _servers(service: Served) -> Sequence[MCPServer]:
    return () if service.page is None else service.page.prompts


async def _graph(service: Served, request: Request, user: str) -> Response:
    graphs = {name: agent_graph(agent) for name, agent in service.runs.agents.items()}
    swarm, has_settings = service.runs.swarm, service.show is show_everything
    drawn = {name: _as_data(graph, swarm, has_settings=has_settings) for name, graph in graphs.items()}
    data: dict[str, Any] = {"agents": list(graphs), "graphs": drawn, "tests": _has_tests(service)}
    if (page := service.page) is not None:
        any_model = page.models == "any"
        models = [node["model"] for each in drawn.values() for node in each["agents"]] if any_model else page.models
        data["models"], data["any_model"] = list(dict.fromkeys(models)), any_model
        data["context_edits"], data["questions"] = page.context_edits, list(page.questions)
        data["prompts"] = bool(page.prompts)
        used = {node["model"] for each in drawn.values() for node in each["agents"]}
        # In a thread, because the import of genai-prices takes a second.
        data["prices"] = await to_thread.run_sync(_prices, swarm, used.union(models))
    return json_response(data)


def _prices(swarm: AsyncSwarm, models: Iterable[str]) -> dict[str, list[dict[str, float]]]:
    """Return the known prices of the models. Empty without the extra `prices`."""
    url = str(getattr(swarm.client, "base_url", "")) or None
    tables = {model: price_table(model, url) for model in models}
    return {model: table for model, table in tables.items() if table}


def _as_data(graph: Graph, swarm: AsyncSwarm, *, has_settings: bool) -> dict[str, Any]:
    nodes = [
        {
            "id": node.id,
            "name": node.agent.name,
            "label": node.label,
            "model": model_of(node.agent, swarm.model),
            "functions": list(node.functions),
            **({"settings": _settings_of(node.agent, swarm)} if has_settings else {}),
        }
        for node in graph.agents
    ]
    return {"agents": nodes, "handoffs": [asdict(handoff) for handoff in graph.handoffs], "mermaid": graph.mermaid()}


def _settings_of(agent: Agent, swarm: AsyncSwarm) -> dict[str, str]:
    """Return the settings of an agent as texts. They have no extra headers, queries and bodies, which may have secrets."""
    asked, output = agent.instructions, as_output(agent.output)
    settings = {"instructions": asked if isinstance(asked, str) else f"the function {_name_of(asked)}"}
    if output is not None:
        settings["output"] = _name_of(output.type)
    if checks := _checks_of(agent, swarm):
        settings["guards"] = ", ".join(checks)
    if agent.tool_choice is not None:
        settings["tool_choice"] = as_json(jsonable(agent.tool_choice)).decode()
    sent = {key: value for key, value in agent.model_settings.items() if not key.startswith("extra_")}
    return settings | {key: as_json(jsonable(value)).decode() for key, value in sent.items()}


def _checks_of(agent: Agent, swarm: AsyncSwarm) -> list[str]:
    """Return the names of the checks of an agent: of the guards of the swarm, and of its structured output."""
    middleware = () if swarm._middleware is None else swarm._middleware.wraps
    output = as_output(agent.output)
    of_output = [] if output is None or output.check is None else [f"{_name_of(output.check)} (output)"]
    return [*(name for each in middleware for name in check_names(each, agent.name)), *of_output]


def _name_of(value: object) -> str:
    return str(getattr(value, "__name__", value))

"""Routes of the playground: its files, the conversations, the graph of the agents, and the test of a run.

Security: The playground loads nothing from other hosts, and runs no text as code.

Security: Readers get the settings of agents only with `show_everything`, and never their extra headers.

Conversations can be listed, searched, read, renamed, deleted and forked. A user sees only their own conversations.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import anyio
from anyio import to_thread
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from aswarm._log.stored import UnknownConversation
from aswarm._record.entries import as_json, public_ids
from aswarm._record.entry_maker import kind_of
from aswarm._runtime import clocks
from aswarm._swarm import AsyncSwarm
from aswarm._values.agent import Agent, model_of
from aswarm._values.decisions import waiting_entries
from aswarm._values.errors import ToolError
from aswarm._values.json import jsonable
from aswarm._values.messages import Message
from aswarm._values.output import as_output
from aswarm._values.text import NO_RUN
from aswarm._values.usage import price_table
from aswarm.conversations import Conflict, Stored
from aswarm.graph import Graph, agent_graph
from aswarm.guards._check import check_names
from aswarm.runs import ConversationNotFound, show_everything
from aswarm.runs.executors import (
    an_object,
    asker,
    conversation_id,
    conversation_key,
    invalid,
    shown_messages,
    user_prefix,
)
from aswarm.serve.wires.requests import a_string, an_optional_text
from aswarm.testing import run_as_test

from ._endpoints import Refusal, endpoint, json_response, place_of, read_json
from ._served import Served

if TYPE_CHECKING:
    from aswarm.mcp import MCPServer


_MAX_LISTED = 1_000
_LONGEST_TITLE = 200


def conversation_routes(service: Served) -> list[BaseRoute]:
    return [
        Route("/conversations", endpoint(service, _list)),
        Route("/conversations/{conversation}", endpoint(service, _get), methods=["GET"]),
        Route("/conversations/{conversation}", endpoint(service, _rename), methods=["PATCH"]),
        Route("/conversations/{conversation}", endpoint(service, _delete), methods=["DELETE"]),
        Route("/conversations/{conversation}/fork", endpoint(service, _fork), methods=["POST"]),
    ]


async def _list(service: Served, request: Request, user: str) -> Response:
    query = request.query_params
    try:
        limit = min(max(int(query.get("limit", "100")), 1), _MAX_LISTED)
        before = float(query["before"]) if "before" in query else None
    except ValueError as error:
        raise Refusal(422, "invalid_request", "limit and before must be numbers") from error
    search = query.get("search", "")
    listed = partial(service.runs.store.list, prefix=user_prefix(user), limit=limit, before=before)
    if search:
        async with service.searching.setdefault(user, anyio.Lock()):
            rows = await listed(search=search)
    else:
        rows = await listed()
    return json_response({"conversations": [{**asdict(row), "id": conversation_id(row.id)} for row in rows]})


async def stored_conversation(service: Served, user: str, name: str) -> Stored:
    """Return a conversation of a user. Raises ConversationNotFound."""
    stored = await service.runs.store.load(conversation_key(user, name))
    if stored is None:
        raise ConversationNotFound(name)
    return stored


async def _get(service: Served, request: Request, user: str) -> Response:
    name = request.path_params["conversation"]
    stored = await stored_conversation(service, user, name)
    runs = await service.runs.list(user=user, conversation=name, limit=1)
    shows_all = service.show is show_everything
    waiting = _waiting(service, stored, asker(stored, runs[0].id if runs else None))
    content = {
        "id": name,
        "revision": stored.revision,
        "agent": stored.agent,
        "messages": stored.messages if shows_all else shown_messages(stored.messages),
        "waiting": waiting,
        "context_variables": {
            key: value for key, value in stored.context_variables.items() if shows_all or key in service.client_context
        },
        "stop": stored.stop,
        "active_run": next((run.id for run in runs if run.is_running), None),
        "created": stored.created,
        "updated": stored.updated,
    }
    return json_response(content)


def _waiting(service: Served, stored: Stored, run: str | None) -> list[dict[str, Any]]:
    """Return the open calls with their public ids. `run`: the id of the run that has left them, or None.

    `kind` is null for a call that needs no answer, and only waits until the other calls have their answers.
    """
    calls = stored.open_calls
    ids = {index: public for public, index in public_ids(stored.messages).items()} if calls else {}
    marks = (waiting_entries(stored.messages) or {}) if calls else {}
    agents = service.runs.known_agents
    return [
        {
            **asdict(call),
            "call_id": ids[call.index],
            "run": run,
            "kind": kind_of(agents.get(call.agent), call.name, marks.get(call.index)),
        }
        for call in calls
    ]


async def _rename(service: Served, request: Request, user: str) -> Response:
    """Set the title. An empty title restores the default title, which is the start of the first message."""
    name = request.path_params["conversation"]
    body = an_object(await read_json(request, service.body_bytes), "body")
    title = a_string(body.get("title"), "title")
    if len(title) > _LONGEST_TITLE or "\0" in title:  # PostgreSQL cannot store the NUL character
        raise invalid("title", f"a text of at most {_LONGEST_TITLE} characters", title)
    if not await service.runs.store.rename(conversation_key(user, name), title):
        raise ConversationNotFound(name)
    return Response(status_code=204)


async def _delete(service: Served, request: Request, user: str) -> Response:
    name = request.path_params["conversation"]
    await service.runs.delete_conversation(name, user=user)
    return Response(status_code=204)


async def _fork(service: Served, request: Request, user: str) -> Response:
    """Fork a conversation. The body has `after`, the number of messages to keep (default: all), and `id` (default: random)."""
    name = request.path_params["conversation"]
    body = an_object(await read_json(request, service.body_bytes), "body")
    after, new_name = body.get("after"), an_optional_text(body.get("id"), "id") or clocks.urandom(12).hex()
    if not body.keys() <= {"after", "id"}:
        raise invalid("body", "an object with only the keys after and id", body)
    if after is not None and (not isinstance(after, int) or isinstance(after, bool) or after < 0):
        raise invalid("after", "a number of messages", after)
    length = len((await stored_conversation(service, user, name)).messages)
    if after is not None and after > length:
        raise Refusal(422, "invalid_request", f"after must be at most {length}, the number of messages, not {after}")
    try:
        await service.runs.store.fork(conversation_key(user, name), conversation_key(user, new_name), until=after)
    except UnknownConversation as error:  # it was deleted meanwhile
        raise ConversationNotFound(name) from error
    except Conflict as error:
        raise Refusal(409, "exists", f"the conversation {new_name!r} already exists; choose another id") from error
    location = place_of(request, f"/conversations/{quote(new_name, safe='')}")
    return json_response({"conversation": new_name}, 201, {"location": location})


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

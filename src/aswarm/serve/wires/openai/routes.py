"""Routes of OpenAI's Chat Completions. Each agent is a model.

A request without a conversation is stateless: its texts are the history. With the header X-Conversation-Id, the history is on
the server, and the server reads only the new messages of the user.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aswarm._runtime import clocks
from aswarm.runs import AgentNotFound, ClientTool, NewRun, Run
from aswarm.runs.executors import TASK_MODEL, registry_of
from aswarm.serve._endpoints import (
    Refusal,
    check_messages,
    client_tools,
    endpoint,
    first_context,
    idempotency_key,
    json_response,
    new_run,
    read_json,
    start,
    tell_left_out,
    uses_responses,
)
from aswarm.serve._responses import LogStream, while_connected
from aswarm.serve._served import Served
from aswarm.serve.wires.requests import ClientRequest

from .encoder import OpenAIWire, error_body, failure_head, model_body, models_body, whole_completion
from .input import ChatRequest, chat_request, check_for_responses, unknown_model

# Open WebUI sends the second header if its ENABLE_FORWARD_USER_INFO_HEADERS is set.
_CONVERSATION = ("x-conversation-id", "x-openwebui-chat-id")
_UNPROCESSABLE = 422
_SERVER_ERRORS = 500


def openai_routes(service: Served) -> list[BaseRoute]:
    """Return the routes of Chat Completions."""
    created = int(clocks.time())

    async def models(service: Served, request: Request, user: str) -> Response:
        return json_response(models_body(_models(service), created))

    async def model(service: Served, request: Request, user: str) -> Response:
        name = request.path_params["model"]
        if name not in _models(service):
            raise unknown_model(name)
        return json_response(model_body(name, created))

    return [
        Route("/v1/models", endpoint(service, models, openai_error)),
        Route("/v1/models/{model:path}", endpoint(service, model, openai_error)),
        Route("/v1/chat/completions", endpoint(service, _complete, openai_error), methods=["POST"]),
    ]


def _models(service: Served) -> list[str]:
    return [*service.runs.agents, *([] if service.runs.task_agent is None else [TASK_MODEL])]


def openai_error(refusal: Refusal) -> Response:
    """Return an error response of Chat Completions. This API has no 422, so a 422 becomes a 400.

    If the conversation is busy, `run` in the body is the id of its active run.
    """
    kind = "server_error" if refusal.status_code >= _SERVER_ERRORS else "invalid_request_error"
    body = error_body(str(refusal), code=refusal.code, type_=kind, param=refusal.extra.get("param"))
    if "run" in refusal.extra:
        body["error"]["run"] = refusal.extra["run"]
    status = 400 if refusal.status_code == _UNPROCESSABLE else refusal.status_code
    return json_response(body, status, refusal.headers)


async def _complete(service: Served, request: Request, user: str) -> Response:
    asked = chat_request(await read_json(request, service.body_bytes))
    if uses_responses(service.runs.swarm):
        check_for_responses(asked.settings)
    try:
        run = await start(service, request, await _new_run(service, request, user, asked))
    except AgentNotFound as error:
        raise unknown_model(asked.model) from error
    own_tools = {tool.name for tool in _tools(service, asked)}
    return await _answer(service, request, run, asked, own_tools)


async def _new_run(service: Served, request: Request, user: str, asked: ChatRequest) -> NewRun:
    named = (request.headers.get(name) for name in _CONVERSATION)
    conversation = next((name for name in named if name), None)
    if conversation is not None and asked.model != TASK_MODEL:
        wanted = ClientRequest(
            asked.messages, asked.answers, strict=False, tools=_tools(service, asked), left_out=_system_text(asked)
        )
        new = await new_run(service, request, user, wanted, conversation, agent=asked.model)
        return replace(new, settings=asked.settings)
    check_messages(service, asked.said)
    system = [{"role": "system", "content": text} for text in asked.system] if service.client_system else []
    tell_left_out(service, [*asked.left_out, *(() if service.client_system else _system_text(asked))])
    return NewRun(
        user,
        messages=[*system, *asked.history],
        agent=asked.model,
        settings=asked.settings,
        key=idempotency_key(request),
        context_variables=await first_context(service, request),
        tools=_tools(service, asked),
        on_disconnect="cancel",  # no client can reconnect to this run, because it has no conversation
    )


def _tools(service: Served, asked: ChatRequest) -> Sequence[ClientTool]:
    """Return the tools of the client that the model may call."""
    return client_tools(service, asked.tools) if asked.offers_tools else ()


def _system_text(asked: ChatRequest) -> list[str]:
    return ["messages with the role system"] if any(asked.system) else []


async def _answer(
    service: Served, request: Request, run: Run, asked: ChatRequest, own_tools: Collection[str]
) -> Response:
    wire = OpenAIWire(asked.model, include_usage=asked.include_usage, activity=service.activity, client_tools=own_tools)
    # A client of this API cannot reconnect. So its answer continues while the service drains.
    patience = service.drain_seconds
    if asked.stream:
        return LogStream(run, wire, heartbeat_seconds=service.heartbeat_seconds, show=service.show, patience=patience)
    notifier = registry_of(run).notifier
    with notifier.reading(run.record):
        async with while_connected(request.receive, notifier, patience):
            entries = [shown async for entry in run.entries() if (shown := service.show(entry)) is not None]
            has_failed = entries and entries[-1].type == "RunFailed"
            status, headers = failure_head(entries[-1]) if has_failed else (200, {})
            return json_response(whole_completion(entries, wire), status, headers)
    raise Refusal(499, "client_gone", "the client disconnected before its run finished")

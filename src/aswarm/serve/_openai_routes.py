"""The routes of OpenAI's Chat Completions: the agents as models.

A request without a conversation is stateless: its texts are the history. With the header X-Conversation-Id the history is on
the server, and only new messages of the user are taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from aswarm._run.handlers import NO_RUN

from ._driving import TASK_MODEL
from ._endpoints import check_length, endpoint, idempotency_key, new_run, start
from ._entries import Entry
from ._http import Refusal, json_response, read_json
from ._openai import OpenAIWire, error_body, failure_headers, failure_status, model_body, models_body, whole_completion
from ._openai_input import ChatRequest, chat_request, unknown_model
from ._requests import ClientRequest
from ._responses import FrameReader, RunStream, while_connected
from ._runs import AgentNotFound, NewRun, Run
from ._show import Show

if TYPE_CHECKING:
    from ._service import Service

logger = logging.getLogger("aswarm")

# Open WebUI sends the second one if its ENABLE_FORWARD_USER_INFO_HEADERS is set.
_CONVERSATION = ("x-conversation-id", "x-openwebui-chat-id")
_UNPROCESSABLE = 422
_SERVER_ERRORS = 500


def openai_routes(service: Service) -> list[BaseRoute]:
    """The routes."""
    created = int(time.time())

    async def models(service: Service, request: Request, user: str) -> Response:
        return json_response(models_body(_models(service), created))

    async def model(service: Service, request: Request, user: str) -> Response:
        name = request.path_params["model"]
        if name not in _models(service):
            raise unknown_model(name)
        return json_response(model_body(name, created))

    return [
        Route("/v1/models", endpoint(service, models, openai_error)),
        Route("/v1/models/{model:path}", endpoint(service, model, openai_error)),
        Route("/v1/chat/completions", endpoint(service, _complete, openai_error), methods=["POST"]),
    ]


def _models(service: Service) -> list[str]:
    return [*service.drivers.agents, *([] if service.task_agent is None else [TASK_MODEL])]


def openai_error(refusal: Refusal) -> Response:
    """The answer in the form of that API, which has no 422. `run` names the run that keeps a conversation busy."""
    kind = "server_error" if refusal.status >= _SERVER_ERRORS else "invalid_request_error"
    body = error_body(str(refusal), code=refusal.code, type_=kind, param=refusal.extra.get("param"))
    if "run" in refusal.extra:
        body["error"]["run"] = refusal.extra["run"]
    status = 400 if refusal.status == _UNPROCESSABLE else refusal.status
    return json_response(body, status, refusal.headers)


async def _complete(service: Service, request: Request, user: str) -> Response:
    asked = chat_request(await read_json(request, service.limits.body))
    if asked.ignored:
        logger.info(
            "a request of Chat Completions has settings without effect: %s", ", ".join(asked.ignored), extra=NO_RUN
        )
    try:
        run = await start(service, request, await _new_run(service, request, user, asked))
    except AgentNotFound as error:
        raise unknown_model(asked.model) from error
    own_tools = {tool.name for tool in asked.tools} if service.client_tools == "offer" else frozenset[str]()
    return _answer(service, run, asked, own_tools)


async def _new_run(service: Service, request: Request, user: str, asked: ChatRequest) -> NewRun:
    named = (request.headers.get(name) for name in _CONVERSATION)
    conversation = next((name for name in named if name), None)
    if conversation is not None and asked.model != TASK_MODEL:
        wanted = ClientRequest(asked.messages, asked.answers, must_fit=False, tools=asked.tools)
        return await new_run(service, request, user, wanted, conversation, agent=asked.model)
    check_length(asked.messages, service.limits.text)
    system = [{"role": "system", "content": text} for text in asked.system] if service.client_system else []
    return NewRun(
        user,
        messages=[*system, *asked.history],
        agent=asked.model,
        key=idempotency_key(request),
        context_variables=None if service.context is None else await service.context(request),
        tools=asked.tools if service.client_tools == "offer" else (),
        on_disconnect="cancel",  # there is no way back to a run without a conversation
    )


def _answer(service: Service, run: Run, asked: ChatRequest, own_tools: Collection[str]) -> Response:
    wire = OpenAIWire(asked.model, include_usage=asked.include_usage, activity=service.activity, client_tools=own_tools)
    # A client of this API cannot come back, so its answer goes on while the service drains.
    patience = service.drain_seconds
    if not asked.stream:
        return _WholeAnswer(run, wire, service.show, patience)
    reader = FrameReader(run, wire, heartbeat=service.heartbeat, show=service.show)
    return RunStream(run, reader, wire, patience=patience)


class _WholeAnswer(Response):
    """Waits for the end of the run, and is the whole completion."""

    def __init__(self, run: Run, wire: OpenAIWire, show: Show, patience: float) -> None:
        super().__init__()
        self._run = run
        self._wire = wire
        self._show = show
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def work() -> None:
            entries = [shown async for entry in self._run.entries() if (shown := self._show(entry)) is not None]
            await _whole(entries, self._wire)(scope, receive, send)

        with self._run.reading():
            await while_connected(work, receive, self._run.draining, self._patience)


def _whole(entries: list[Entry], wire: OpenAIWire) -> Response:
    body = whole_completion(entries, wire)
    if entries and entries[-1].type == "RunFailed":
        return json_response(body, failure_status(entries[-1]), failure_headers(entries[-1]))
    return json_response(body)

"""The routes of conversations: list, read, delete, fork. Each user has conversations of their own."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aswarm._decisions import waiting_entries
from aswarm.conversations import Conflict, ConversationSummary, Stored

from ._driving import conversation_id, conversation_key, user_prefix
from ._endpoints import endpoint
from ._entries import public_ids
from ._entry_maker import kind_of
from ._http import Refusal, json_response, place_of, read_model
from ._runs import ConversationNotFound
from ._show import everything

if TYPE_CHECKING:
    from ._service import Service

_MOST = 1_000


class _ForkBody(BaseModel, extra="forbid"):
    """`after`: how many messages the fork keeps; all by default. `id`: of the fork; a new one by default."""

    after: int | None = Field(None, ge=0)
    id: str | None = Field(None, min_length=1, max_length=200)


def conversation_routes(service: Service) -> list[BaseRoute]:
    """The routes."""
    return [
        Route("/conversations", endpoint(service, _list)),
        Route("/conversations/{conversation}", endpoint(service, _get), methods=["GET"]),
        Route("/conversations/{conversation}", endpoint(service, _delete), methods=["DELETE"]),
        Route("/conversations/{conversation}/fork", endpoint(service, _fork), methods=["POST"]),
    ]


async def _list(service: Service, request: Request, user: str) -> Response:
    query = request.query_params
    try:
        limit = min(max(int(query.get("limit", "100")), 1), _MOST)
        before = float(query["before"]) if "before" in query else None
    except ValueError as error:
        raise Refusal(422, "invalid_request", "limit and before are numbers") from error
    found = await service.store.list(prefix=user_prefix(user), limit=limit, before=before)
    return json_response({"conversations": [_summary(each) for each in found]})


def _summary(summary: ConversationSummary) -> dict[str, Any]:
    return {**asdict(summary), "id": conversation_id(summary.id)}


async def stored_conversation(service: Service, user: str, name: str) -> Stored:
    """A conversation of a user. Raises ConversationNotFound."""
    stored = await service.store.load(conversation_key(user, name))
    if stored is None:
        raise ConversationNotFound(name)
    return stored


async def _get(service: Service, request: Request, user: str) -> Response:
    name = request.path_params["conversation"]
    stored = await stored_conversation(service, user, name)
    runs = await service.runs.list(user=user, conversation=name, limit=1)
    shows_all = service.show is everything
    content = {
        "id": name,
        "revision": stored.revision,
        "agent": stored.agent,
        "messages": stored.messages,
        "waiting": _waiting(service, stored),
        "context_variables": {
            key: value for key, value in stored.context_variables.items() if shows_all or key in service.client_context
        },
        "stop": stored.stop,
        "active_run": next((run.id for run in runs if run.is_running), None),
        "created": stored.created,
        "updated": stored.updated,
    }
    return json_response(content)


def _waiting(service: Service, stored: Stored) -> list[dict[str, Any]]:
    """The open calls with their public ids; `kind` says what each waits for, null for one that only stands behind another."""
    calls = stored.waiting
    ids = {index: public for public, index in public_ids(stored.messages).items()} if calls else {}
    marks = (waiting_entries(stored.messages) or {}) if calls else {}
    agents = service.drivers.known
    return [
        {
            **asdict(call),
            "call_id": ids[call.index],
            "kind": kind_of(agents.get(call.agent), call.name, marks.get(call.index)),
        }
        for call in calls
    ]


async def _delete(service: Service, request: Request, user: str) -> Response:
    name = request.path_params["conversation"]
    await stored_conversation(service, user, name)
    await service.runs.forget(name, user=user)
    await service.store.delete(conversation_key(user, name))
    return Response(status_code=204)


async def _fork(service: Service, request: Request, user: str) -> Response:
    name = request.path_params["conversation"]
    body = await read_model(request, _ForkBody, service.limits.body)
    length = len((await stored_conversation(service, user, name)).messages)
    if body.after is not None and body.after > length:
        raise Refusal(422, "invalid_request", f"after: the conversation has {length} messages")
    new_name = body.id or secrets.token_urlsafe(12)
    chat = service.drivers.conversation(user, name, None, None)
    try:
        await chat.fork(conversation_key(user, new_name), at=body.after)
    except Conflict as error:
        raise Refusal(409, "exists", f"there is a conversation {new_name!r} already") from error
    location = place_of(request, f"/conversations/{quote(new_name, safe='')}")
    return json_response({"conversation": new_name}, 201, {"location": location})

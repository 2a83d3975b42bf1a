"""Routes of conversations: list, search, read, rename, delete, fork. A user sees only their own conversations."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any
from urllib.parse import quote

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from aswarm._log.stored import UnknownConversation
from aswarm._record.entries import public_ids
from aswarm._record.entry_maker import kind_of
from aswarm._runtime import clocks
from aswarm._values.decisions import waiting_entries
from aswarm.conversations import Conflict, Stored
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

from ._endpoints import Refusal, endpoint, json_response, place_of, read_json
from ._served import Served

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

"""A chat over HTTP whose answers are streamed as server-sent events. Run it with `uvicorn app:app`.

The history of a conversation is kept here, on the server, and nowhere else. What a browser sends is the text of one
message, and is never more than that: not a history, not a role, not an order to run something.

A client may go away at any moment. The run then ends: the model's response is closed, running functions are cancelled.
What had happened is kept, valid, and the next message goes on from it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents import concierge
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from aswarm import Agent, AswarmError, AsyncSwarm, Event, RunFinished, TextDelta, ToolCallStarted

logger = logging.getLogger("concierge")

MAX_BYTES = 20_000
MAX_TURNS = 10


class Said(BaseModel, extra="forbid"):
    """What a browser sends."""

    text: str = Field(min_length=1, max_length=4000)


@dataclass(slots=True)
class Conversation:
    """Who speaks next, and all that has been said. In memory: a real service has a table for it."""

    agent: Agent = field(default_factory=lambda: concierge)
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, swarm: AsyncSwarm, text: str) -> AsyncGenerator[str]:
        """The answer to `text`, as server-sent events. However it ends, what had happened is kept."""
        async with self.lock:  # one message at a time; the next one waits until this one is kept
            self.messages.append({"role": "user", "content": text})
            run = swarm.stream(self.agent, self.messages, max_turns=MAX_TURNS)
            try:
                async with run:
                    async for event in run:
                        if sent := server_sent(event):
                            yield sent
            except AswarmError:
                logger.exception("the model could not answer")
                yield sse("error", "The concierge cannot answer just now.")
            finally:
                self.messages += run.response.messages
                self.agent = run.response.agent


def server_sent(event: Event) -> str | None:
    """What the browser gets to see of an event, if anything."""
    match event:
        case TextDelta(text=text):
            return sse("text", text)
        case ToolCallStarted(name=name):
            return sse("tool", name)
        case RunFinished(response=response):
            return sse("done", response.stop)
        case _:
            return None


def sse(kind: str, data: str) -> str:
    """One server-sent event. The data is JSON, so that a line break in it cannot end the event."""
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


class EventStream(StreamingResponse):
    """Closes its generator before it returns, also when the client has left: Starlette leaves that to chance."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str]) -> None:
        """`events`: whole server-sent events."""
        super().__init__(events, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As every response; `events` is closed at the end."""
        async with aclosing(self.events):
            await super().__call__(scope, receive, send)


# --- endpoints ---


async def page(_: Request) -> FileResponse:
    """The page that shows the chat."""
    return FileResponse(Path(__file__).with_name("page.html"))


async def begin(request: Request) -> JSONResponse:
    """A new conversation. Its id cannot be guessed: who has it may read and write."""
    name = secrets.token_urlsafe()
    request.app.state.conversations[name] = Conversation()
    return JSONResponse({"id": name}, 201)


async def read(request: Request) -> JSONResponse:
    """What has been said, without the functions' results: those are between the model and the server."""
    said = [message for message in find(request).messages if message["role"] in {"user", "assistant"}]
    return JSONResponse([{"role": each["role"], "text": each["content"]} for each in said if each["content"]])


async def say(request: Request) -> EventStream:
    """One message; the answer is streamed."""
    conversation, said = find(request), await receive_message(request)
    return EventStream(conversation.answer(request.app.state.swarm, said.text))


def find(request: Request) -> Conversation:
    """The conversation in the path of the request."""
    conversation: Conversation | None = request.app.state.conversations.get(request.path_params["id"])
    if conversation is None:
        raise HTTPException(404)
    return conversation


async def receive_message(request: Request) -> Said:
    """The body of the request, if it is a message."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BYTES:
            raise HTTPException(413)
    try:
        return Said.model_validate_json(body)
    except ValidationError as error:
        raise HTTPException(400, 'expected {"text": "..."}, 1 to 4000 characters') from error


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    """One swarm for all requests, as long as the service runs: it holds the connections to the model."""
    async with AsyncSwarm() as swarm:
        app.state.swarm = swarm
        app.state.conversations = {}
        yield


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/", page),
        Route("/conversations", begin, methods=["POST"]),
        Route("/conversations/{id}", read),
        Route("/conversations/{id}", say, methods=["POST"]),
    ],
)

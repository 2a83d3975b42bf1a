"""A service on a real socket: uvicorn in this event loop, with httpx clients of its users."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from aswarm import AsyncSwarm
from aswarm.serve import Service, bearer, create_app
from aswarm.testing import ScriptedModel
from tests.support.runs.kept_runs import Workshop

TOKENS = {"token-of-ann": "ann", "token-of-bob": "bob"}


@dataclass
class Served:
    """A running service. `ann` and `bob` are clients of its two users. `model`: has the requests to the model."""

    service: Service
    model: ScriptedModel
    url: str
    ann: httpx.AsyncClient
    bob: httpx.AsyncClient

    async def say(self, text: str = "Hi!", conversation: str = "c", **body: Any) -> str:
        """Start a run of Ann's, and return its id."""
        answer = await self.ann.post(f"/conversations/{conversation}/runs", json={"text": text, **body})
        assert answer.status_code == 202, answer.text
        run: str = answer.json()["run"]
        return run

    async def state(self, run: str) -> dict[str, Any]:
        """Return the state of a run of Ann's from the service."""
        found: dict[str, Any] = (await self.ann.get(f"/runs/{run}")).json()
        return found

    def sent(self) -> list[list[dict[str, Any]]]:
        """Return the messages of each request to the model."""
        return [request.body["messages"] for request in self.model.requests]

    async def stored(self, conversation: str) -> Any:
        """Return a conversation of Ann's in the store, or None."""
        store: Any = self.service.runs.store  # type: ignore[attr-defined]
        return await store.load(f"ann/{conversation}")

    async def ended(self, run: str) -> dict[str, Any]:
        """Wait for the end of a run, and return its state."""
        while (state := await self.state(run))["status"] == "running":
            await asyncio.sleep(0.01)
        return state


def client(url: str, token: str | None) -> httpx.AsyncClient:
    """Return a client with a token, or without a token."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=20, trust_env=False)


def service(
    script: Any, workshop: Workshop | None = None, *, cut: int = 4, middleware: Any = (), **settings: Any
) -> Service:
    """Return a service with a scripted model, the agents of the workshop, and two users. `script`: may be the model itself."""
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script, cut=cut)
    agents = (workshop or Workshop()).agents()
    swarm = AsyncSwarm(model.client(), middleware=middleware)
    return create_app(swarm, **{"agents": agents, "auth": bearer(TOKENS), **settings})


@asynccontextmanager
async def listening(app: Any) -> AsyncGenerator[str]:
    """Serve an ASGI app on a free port, with its lifespan, and yield its URL."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", log_config=None, lifespan="on"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
            assert not task.done(), "the server did not start"
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def served(
    script: Any, workshop: Workshop | None = None, *, cut: int = 4, **settings: Any
) -> AsyncGenerator[Served]:
    """Serve `service(...)` on a socket."""
    model = ScriptedModel(script, cut=cut)
    made = service(model, workshop, **settings)
    async with listening(made) as url, client(url, "token-of-ann") as ann, client(url, "token-of-bob") as bob:
        yield Served(made, model, url, ann, bob)


def message_on(wire: str, text: str = "Hi!", conversation: str = "c", **more: Any) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request with a message on a wire."""
    message = {"id": text, "role": "user", "content": text}
    if wire == "native":
        return f"/conversations/{conversation}/runs", {"text": text, **more}
    if wire == "agui":
        state = {"runId": "r1", "state": {}, "protocolVersion": "1.0"}
        return "/agui/Boss", {"threadId": conversation, "messages": [message], **state, **more}
    if wire == "vercel":
        message = {"id": text, "role": "user", "parts": [{"type": "text", "text": text}]}
        return "/chat/Boss", {"id": conversation, "messages": [message], "trigger": "submit-message", **more}
    return "/v1/chat/completions", {"model": "Boss", "messages": [{"role": "user", "content": text}], **more}


def events_of(text: str) -> list[dict[str, str]]:
    """Return server-sent events as dicts of their fields, without comments."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if fields:
            found.append(fields)
    return found

"""A service executes the run, and another process stops it.

Follows https://ai.pydantic.dev/agent/#cancelling-a-run, and https://ai.pydantic.dev/ui/vercel-ai/#cancellation: a `CancellationToken`
for the run, and a route of the service that cancels it. `RunCancelled` has the messages.
"""

from __future__ import annotations

import asyncio

import httpx
import uvicorn
from common import CHAT, agent
from pydantic_ai import CancellationToken
from pydantic_ai.exceptions import RunCancelled
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from stage import FOLDER, GO_ON, PORT, book_train, effect, look_up, main, seen
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

DESK = agent(look_up, book_train)
CHAT_FILE = FOLDER / "messages.json"
RUNNING: dict[str, tuple[CancellationToken, asyncio.Task[None]]] = {}


async def execute(text: str, token: CancellationToken) -> None:
    """Run, and save the messages, also if the run is cancelled."""
    before = ModelMessagesTypeAdapter.validate_json(CHAT_FILE.read_bytes()) if CHAT_FILE.exists() else []
    try:
        result = await DESK.run(text, message_history=before, conversation_id=CHAT, cancellation_token=token)
        save(result.all_messages())
    except RunCancelled as cancelled:
        save(list(cancelled.all_messages()))


def save(messages: list[ModelMessage]) -> None:
    """Save the messages of the conversation."""
    CHAT_FILE.write_bytes(ModelMessagesTypeAdapter.dump_json(messages))


async def chat(request: Request) -> Response:
    """Start a run, which does not end with the request."""
    token = CancellationToken()
    RUNNING[CHAT] = token, asyncio.create_task(execute((await request.body()).decode(), token))
    return Response(status_code=202)


async def cancel(_: Request) -> Response:
    """Stop the run, and wait for its end."""
    token, task = RUNNING[CHAT]
    token.cancel()
    await task
    return Response(status_code=204)


async def wait(_: Request) -> Response:
    """Wait for the end of the run."""
    await RUNNING[CHAT][1]
    return Response(status_code=204)


async def serve() -> None:
    """Serve until the process is killed."""
    routes = [Route("/chat", chat, methods=["POST"]), Route("/cancel", cancel, methods=["POST"]), Route("/wait", wait)]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), port=PORT, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.02)
    effect("ready")
    await serving


def browser() -> httpx.AsyncClient:
    """Return a client of the service."""
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT}", timeout=60)


async def start() -> None:
    """Start a run, and leave while its tool runs."""
    async with browser() as client:
        (await client.post("/chat", content="Look up order 7, and book the train.")).raise_for_status()
    await seen("book_train")


async def stop() -> None:
    """Stop the run from this process."""
    async with browser() as client:
        (await client.post("/cancel")).raise_for_status()


async def go_on() -> None:
    """Continue the conversation."""
    async with browser() as client:
        (await client.post("/chat", content=GO_ON)).raise_for_status()
        (await client.get("/wait")).raise_for_status()


if __name__ == "__main__":
    main(serve, start, stop, go_on)

"""Helpers for the tests of `Swarm`: blocking clients, calls as in a script and in a notebook, and a server in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import anyio
import anyio.from_thread
import httpx
from openai import OpenAI

from aswarm import Agent, Response, Swarm
from aswarm._blocking.caller import Caller
from aswarm._blocking.event_loop import EventLoopThread, Interrupts
from aswarm.testing import ScriptedAnswer, ScriptedModel
from tests.support.blocking.plain_client import BlockingClient, Step, as_answer
from tests.support.providers.loopback import LoopbackServer, Reply, serve, sse, whole
from tests.support.providers.threaded_server import threaded_server

FACES = ("run", "run(stream=True)", "stream")


def scripted_openai(*steps: Step, kind: type[OpenAI] = OpenAI, bodies: list[Any] | None = None) -> OpenAI:
    """Return a real blocking `OpenAI` whose transport answers with the steps in order, and notes the bodies of requests."""
    script = iter(steps)

    def answer(request: httpx.Request) -> httpx.Response:
        step, body = as_answer(next(script)), json.loads(request.content)
        if bodies is not None:
            bodies.append(body)
        if not body.get("stream"):
            return httpx.Response(200, content=whole(step).pieces[0], headers={"content-type": "application/json"})
        return httpx.Response(
            200, headers={"content-type": "text/event-stream"}, content=b"".join(sse(step, cut=2).pieces)
        )

    http_client: Any = httpx.Client(transport=httpx.MockTransport(answer))
    return kind(api_key="k", base_url="http://scripted.test/v1", max_retries=0, http_client=http_client)


CLIENTS: dict[str, Callable[..., Any]] = {
    "blocking": BlockingClient,
    "OpenAI": scripted_openai,
    "AsyncOpenAI": lambda *steps: ScriptedModel(steps, cut=2).client(),
}


def consume(swarm: Swarm, agent: Agent, face: str, messages: Any = "Go", **options: Any) -> Response:
    """Run to the end in any of the three ways."""
    if face == "run":
        return swarm.run(agent, messages, **options)
    if face == "run(stream=True)":
        return list(swarm.run(agent, messages, stream=True, **options))[-1]["response"]  # type: ignore[no-any-return]
    with swarm.stream(agent, messages, **options) as run:
        for _ in run:
            pass
    return run.response


def in_script(work: Callable[[], Any]) -> Any:
    """Call the work as a script does."""
    return work()


def in_notebook(work: Callable[[], Any]) -> Any:
    """Call the work as a notebook does: in the main thread, which runs an event loop."""

    async def cell() -> Any:
        return work()

    return asyncio.run(cell())


PLACES: dict[str, Callable[[Callable[[], Any]], Any]] = {"script": in_script, "notebook": in_notebook}


def do(loop: EventLoopThread, work: Any) -> Any:
    """Run a coroutine function on the loop, and wait."""
    loop.check()
    with Interrupts() as interrupts:
        return Caller(loop).wait_for(work, interrupts)


@contextmanager
def server_beside(reply: Callable[[dict[str, Any]], Reply]) -> Iterator[LoopbackServer]:
    """Run the loopback server in a thread."""
    with anyio.from_thread.start_blocking_portal() as portal, portal.wrap_async_context_manager(serve(reply)) as server:
        yield server


def until(condition: Callable[[], object]) -> None:
    """Wait for the condition. Fails after a time limit."""
    waiting = threading.Event()
    for _ in range(1000):
        if condition():
            return
        waiting.wait(0.005)
    raise AssertionError("waited in vain")


@contextmanager
def keeping_server() -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """Run a server that keeps its connections and echoes the text. Yields its base URL, and (port, text) of each request."""
    seen: list[tuple[int, str]] = []

    def echo(handler: BaseHTTPRequestHandler, request: Any) -> tuple[int, bytes]:
        text = request["messages"][-1]["content"]
        seen.append((handler.client_address[1], text))
        return 200, whole(ScriptedAnswer(text)).pieces[0]

    with threaded_server(echo) as url:
        yield f"{url}/v1", seen

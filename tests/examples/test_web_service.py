"""`examples/web_service`: both applications on real uvicorn and real sockets, with a browser's requests."""

from __future__ import annotations

import asyncio
import importlib
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from aswarm.testing import ScriptedAnswer, call, check_history
from tests.examples.transcripts import EXAMPLES
from tests.support.leaving.run_scenes import until
from tests.support.providers.loopback import LoopbackServer, Reply, serve, sse

APPLICATIONS = ("app", "fastapi_app")
RUNS = "/chat/conversations/1/runs"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """The applications of the example by name. Other examples have modules of the same names, so these are removed."""
    names = ("agents", *APPLICATIONS)
    for name in names:
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(EXAMPLES / "web_service")
    yield lambda name: importlib.import_module(name).app
    for name in names:
        sys.modules.pop(name, None)


@asynccontextmanager
async def offered(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The application on a free port, and a browser that has opened its page."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=10) as browser:
            opened = await browser.get("/")
            assert opened.headers["content-type"].startswith("text/html")
            yield browser
    finally:
        server.should_exit = True
        await serving
        listener.close()


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`async with answered(reply, ...) as model`: a server of these replies; then it always replies "done"."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    @asynccontextmanager
    async def answers(*replies: Reply) -> AsyncIterator[LoopbackServer]:
        left = iter(replies)
        async with serve(lambda _: next(left, sse(ScriptedAnswer("done"), cut=2))) as model:
            monkeypatch.setenv("OPENAI_BASE_URL", model.base_url)
            yield model

    return answers


async def entries(browser: httpx.AsyncClient, started: httpx.Response) -> list[dict[str, Any]]:
    """Return all entries of a started run."""
    assert started.status_code == 202, started.text
    text = (await browser.get(started.headers["location"])).text
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]


@pytest.mark.asyncio
@pytest.mark.parametrize("name", APPLICATIONS)
async def test_a_guest_is_answered(name: str, example: Any, answered: Any) -> None:
    """The events lead to the answer, below the mount point; the conversation is kept, and is valid."""
    app = example(name)
    async with answered(sse(ScriptedAnswer(calls=[call("opening_hours", place="pool")]))), offered(app) as browser:
        found = await entries(browser, await browser.post(RUNS, json={"text": "pool?"}))
        assert "".join(entry["text"] for entry in found if entry["type"] == "TextDelta") == "done"
        kept = (await browser.get("/chat/conversations/1")).json()["messages"]
        assert [message["role"] for message in kept] == ["user", "assistant", "tool", "assistant"]
        check_history(kept)


@pytest.mark.asyncio
async def test_another_guest_sees_nothing(example: Any, answered: Any) -> None:
    """Another guest cannot read the conversation, and a request without the cookie is refused."""
    async with answered(), offered(example("app")) as browser:
        started = await browser.post(RUNS, json={"text": "secret"})
        await entries(browser, started)
        async with httpx.AsyncClient(base_url=browser.base_url) as other:
            assert (await other.get("/chat/conversations/1")).status_code == 401
            await other.get("/")
            assert (await other.get("/chat/conversations/1")).status_code == 404
            assert (await other.get(started.headers["location"])).status_code == 404


@pytest.mark.asyncio
async def test_fastapi_has_a_route_of_its_own(example: Any, answered: Any) -> None:
    """The route streams a run of the service, validates its arguments, and is in the schema."""
    async with answered(), offered(example("fastapi_app")) as browser:
        said = await browser.post("/rooms/7/ask", json={"text": "hello"})
        assert said.headers["content-type"].startswith("text/event-stream")
        assert '"RunFinished"' in said.text
        kept = (await browser.get("/chat/conversations/room-7")).json()["messages"]
        assert [message["content"] for message in kept] == ["hello", "done"]
        assert (await browser.post("/rooms/x/ask", json={"text": "hello"})).status_code == 422
        assert (await browser.post("/rooms/7/ask", json={"text": ""})).status_code == 422
        assert list((await browser.get("/openapi.json")).json()["paths"]) == ["/rooms/{room}/ask"]

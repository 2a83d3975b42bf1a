"""The text of a failed request: server, model and usual cause, through real clients and sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from aswarm import Agent, AsyncSwarm, CompletionError, Swarm
from aswarm.testing import ScriptedAnswer
from tests.support.providers.loopback import data_of, whole

pytestmark = pytest.mark.asyncio

AGENT = Agent(model="some-model")
SECRET = "sk-SECRET"


class Provider(BaseHTTPRequestHandler):
    """Answers at `/v1`; below `/401`, `/403` and `/model` it refuses; any other address is not found."""

    def do_POST(self) -> None:
        """One request."""
        self.rfile.read(int(self.headers["content-length"]))
        place = self.path.split("/")[1]
        if self.path == "/v1/chat/completions":
            self.answer(200, data_of(whole(ScriptedAnswer("Hi")))[0])
        elif place in ("401", "403"):
            self.answer(int(place), {"error": {"message": "go away"}})
        elif place == "model":
            self.answer(404, {"error": {"message": "The model `some-model` does not exist"}})
        else:
            self.answer(404, "page not found")

    def answer(self, status: int, content: Any) -> None:
        """Send it as JSON."""
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def provider() -> Generator[str]:
    """Its address, without a path."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


async def failure(url: str, way: str) -> str:
    """The text of the error of a run."""
    options: dict[str, Any] = {"base_url": url, "api_key": SECRET, "max_retries": 0, "default_query": {"key": SECRET}}
    async with AsyncOpenAI(**options) as client:
        if way == "patched":  # as instrumentation does it: `create` is called
            client.chat.completions.create = client.chat.completions.create
        with OpenAI(**options) as blocking, pytest.raises(CompletionError) as caught:
            await run(way, client, blocking)
    assert SECRET not in str(caught.value)
    return str(caught.value)


async def run(way: str, client: AsyncOpenAI, blocking: OpenAI) -> None:
    """Run to the end."""
    if way == "blocking":
        Swarm(blocking).run(AGENT, "Hi")
        return
    async with AsyncSwarm(client).stream(AGENT, "Hi", deltas=way == "stream") as events:
        async for _ in events:
            pass


@pytest.mark.parametrize("way", ["run", "stream", "patched", "blocking"])
async def test_a_port_on_which_nothing_listens(way: str) -> None:
    """Address and model are named, and that the server may not be running."""
    url = f"http://127.0.0.1:{free_port()}/v1"
    said = await failure(url, way)
    assert said.endswith(
        f" (model 'some-model' at {url}; nothing listens there; check that the server runs, and the port)"
    )


@pytest.mark.parametrize("way", ["run", "stream", "patched", "blocking"])
@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("", "this address is not found: most base URLs end with /v1"),
        ("/v2", "the server does not have this address or this model; check both"),
        ("/401/v1", "the server refused the API key"),
        ("/403/v1", "the API key has no access"),
        ("/model/v1", "the server does not have this model"),
    ],
)
async def test_a_server_that_refuses(path: str, cause: str, way: str) -> None:
    """The usual cause of the status is named; user and password of the address are not."""
    with provider() as host:
        said = await failure(f"http://ada:{SECRET}@{host}{path}", way)
    assert f" (model 'some-model' at http://{host}{path}; {cause}" in said


async def test_the_address_that_is_suggested_works() -> None:
    """With `/v1` the same server answers."""
    with provider() as host:
        async with AsyncOpenAI(base_url=f"http://{host}/v1", api_key="x") as client:
            assert (await AsyncSwarm(client).run(AGENT, "Hi")).text == "Hi"

"""The text of a failed request: server, model and usual cause, through real clients and sockets."""

from __future__ import annotations

import socket
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from aswarm import Agent, AsyncSwarm, CompletionError, Swarm
from aswarm.testing import ScriptedAnswer
from tests.support.providers.loopback import whole
from tests.support.providers.threaded_server import threaded_server

pytestmark = pytest.mark.asyncio

AGENT = Agent(model="some-model")
SECRET = "sk-SECRET"


def provider(handler: BaseHTTPRequestHandler, _: object) -> tuple[int, bytes]:
    """Answer at `/v1`; below `/401`, `/403` and `/model` refuse; any other address is not found."""
    place = handler.path.split("/")[1]
    status, content = 404, '"page not found"'
    if handler.path == "/v1/chat/completions":
        return 200, whole(ScriptedAnswer("Hi")).pieces[0]
    if place in ("401", "403"):
        status, content = int(place), '{"error": {"message": "go away"}}'
    elif place == "model":
        content = '{"error": {"message": "The model `some-model` does not exist"}}'
    return status, content.encode()


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
    with threaded_server(provider) as url:
        said = await failure(f"{url.replace('//', f'//ada:{SECRET}@')}{path}", way)
    assert f" (model 'some-model' at {url}{path}; {cause}" in said


async def test_the_address_that_is_suggested_works() -> None:
    """With `/v1` the same server answers."""
    with threaded_server(provider) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client:
            assert (await AsyncSwarm(client).run(AGENT, "Hi")).text == "Hi"

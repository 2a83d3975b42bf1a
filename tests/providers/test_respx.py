"""With respx, as the users of httpx test: an `AsyncOpenAI(http_client=httpx.AsyncClient())`, on openai 2.x and 3.x.

respx patches the transport of `httpx`. openai 3.x is on `httpx2`, hence the `http_client`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import respx
from openai import AsyncOpenAI

from aswarm import Agent, AsyncSwarm
from aswarm.testing import ScriptedAnswer, call, check_history
from tests.support.providers import loopback

pytestmark = pytest.mark.asyncio
URL = "https://api.respx.test/v1/chat/completions"


def get_weather(city: str) -> str:
    return f"Sunny in {city}"


@pytest.fixture
def api() -> Iterator[respx.Route]:
    """The one route of the API."""
    with respx.mock(assert_all_called=False) as router:
        yield router.post(URL)


def client(**options: Any) -> AsyncOpenAI:
    settings = {"max_retries": 0, **options}
    base_url = URL.removesuffix("/chat/completions")
    http_client: Any = httpx.AsyncClient()  # openai 3.x takes one of httpx too, but its type hint is httpx2
    return AsyncOpenAI(api_key="k", base_url=base_url, http_client=http_client, **settings)


def whole(answer: ScriptedAnswer) -> httpx.Response:
    return httpx.Response(200, content=b"".join(loopback.whole(answer).pieces))


def streamed(answer: ScriptedAnswer, events: int | None = None) -> httpx.Response:
    """Return a streamed answer, or only its first `events`."""
    body = b"".join(loopback.sse(answer, cut=4).pieces[:events])
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)


async def test_a_conversation(api: respx.Route) -> None:
    """A run over respx: the tool is called and the second request carries its answer."""
    made = call("get_weather", city="Oslo", call_id="c1")
    api.side_effect = [whole(ScriptedAnswer(calls=[made])), whole(ScriptedAnswer("Sunny."))]
    response = await AsyncSwarm(client=client()).run(Agent(functions=[get_weather]), "Weather in Oslo?")
    assert response.text == "Sunny."
    second = json.loads(api.calls[1].request.content)
    assert second["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "Sunny in Oslo"}
    assert api.calls[0].request.headers["authorization"] == "Bearer k"
    check_history(response.messages)


async def test_a_streamed_conversation(api: respx.Route) -> None:
    """The same, streamed."""
    made = call("get_weather", city="Oslo", call_id="c1")
    api.side_effect = [streamed(ScriptedAnswer(calls=[made])), streamed(ScriptedAnswer("Sunny."))]
    async with AsyncSwarm(client=client()).stream(Agent(functions=[get_weather]), "Weather in Oslo?") as run:
        async for _ in run:
            pass
    assert run.response.text == "Sunny."
    assert run.response.usage.requests == api.call_count == 2

"""The transports of a swarm, for tests of rules that hold on each of them: openai's clients on two, and `HTTPSource`."""

from __future__ import annotations

import ssl
from typing import Any, Literal

import anthropic
import openai
import pytest

from aswarm.sources import HTTPSource

Transport = Literal["httpx", "aiohttp", "direct"]
Api = Literal["auto", "chat", "responses", "anthropic"]

# aiohttp is for asyncio only.
EACH_TRANSPORT = [
    ("httpx", "asyncio"),
    ("httpx", "trio"),
    ("aiohttp", "asyncio"),
    ("direct", "asyncio"),
    ("direct", "trio"),
]
on_each_transport = pytest.mark.parametrize(("transport", "anyio_backend"), EACH_TRANSPORT)


def client_at(base_url: str, transport: Transport = "httpx", api: Api = "auto", **options: Any) -> Any:
    """A real client; it is given an empty SSL context, because making a full one costs more than a whole test.

    `api`: for the direct source, which chooses its API itself, and for a client of Anthropic.
    """
    options = {"api_key": "k", "max_retries": 0, **options}
    if api == "anthropic":
        return anthropic.AsyncAnthropic(base_url=base_url.removesuffix("/v1"), **options)
    if transport == "direct":
        return HTTPSource(base_url, api=api, **options)
    kind = openai.DefaultAsyncHttpxClient if transport == "httpx" else openai.DefaultAioHttpClient
    http_client = kind(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return openai.AsyncOpenAI(base_url=base_url, http_client=http_client, **options)

"""The transports of openai's clients, for tests of what holds on each of them."""

from __future__ import annotations

import ssl
from typing import Any, Literal

import openai
import pytest

Transport = Literal["httpx", "aiohttp"]

# aiohttp is for asyncio only.
on_each_transport = pytest.mark.parametrize(
    ("transport", "anyio_backend"), [("httpx", "asyncio"), ("httpx", "trio"), ("aiohttp", "asyncio")]
)


def client_at(base_url: str, transport: Transport = "httpx", **options: Any) -> openai.AsyncOpenAI:
    """A real client; it is given an empty SSL context, because making a full one costs more than a whole test."""
    kind = openai.DefaultAsyncHttpxClient if transport == "httpx" else openai.DefaultAioHttpClient
    http_client = kind(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return openai.AsyncOpenAI(
        base_url=base_url, http_client=http_client, **{"api_key": "k", "max_retries": 0, **options}
    )

"""The `AsyncOpenAI` client for all contenders that use the openai package. So they are compared with the same client."""

from __future__ import annotations

import importlib
from typing import Any

import openai
from scenario import API_KEY

SECONDS = 600.0


def openai_client(url: str, connections: int | None = None) -> openai.AsyncOpenAI:
    """Return a client for the server at `url`. `connections`: the size of its pool; None for the SDK's default.

    With a size, the timeout is also longer: the default for opening a connection is five seconds. This is too short if two
    thousand connections are opened at once.
    """
    room = _room(connections)
    client = {"http_client": openai.DefaultAsyncHttpxClient(limits=room["limits"])} if room else {}
    timeout = {"timeout": SECONDS} if room else {}
    return openai.AsyncOpenAI(base_url=url, api_key=API_KEY, **client, **timeout)


def openai_client_on_aiohttp(url: str, connections: int | None = None) -> openai.AsyncOpenAI:
    """Return the same client with the SDK's aiohttp transport."""
    client = openai.DefaultAioHttpClient(**_room(connections))
    return openai.AsyncOpenAI(base_url=url, api_key=API_KEY, http_client=client)


def _room(connections: int | None) -> dict[str, Any]:
    if connections is None:
        return {}
    limits = http_package().Limits(max_connections=connections, max_keepalive_connections=connections)
    return {"limits": limits, "timeout": SECONDS}


def http_package() -> Any:
    """Return the HTTP package that this version of openai uses: httpx or httpx2."""
    return importlib.import_module("httpx2" if int(openai.__version__.partition(".")[0]) >= 3 else "httpx")  # noqa: PLR2004 - a major version

"""The `AsyncOpenAI` client of all contenders on the openai package, so that they all have the same client."""

from __future__ import annotations

import importlib
from typing import Any

import openai
from scenario import API_KEY

SECONDS = 600.0


def openai_client(url: str, connections: int | None = None) -> openai.AsyncOpenAI:
    """Return a client for the server at `url`. `connections`: the size of its pool, None for the SDK's default.

    With a size, the timeout is longer too: by default each connection has five seconds, which is too short for two thousand
    connections at once.
    """
    settings: dict[str, Any] = {} if connections is None else {"http_client": _roomy(connections), "timeout": SECONDS}
    return openai.AsyncOpenAI(base_url=url, api_key=API_KEY, **settings)


def _roomy(connections: int) -> Any:
    return openai.DefaultAsyncHttpxClient(limits=limits(connections))


def limits(connections: int) -> Any:
    """Return the limits of a pool, for the httpx of this version of openai."""
    package = "httpx2" if int(openai.__version__.partition(".")[0]) >= 3 else "httpx"  # noqa: PLR2004 - a major version
    return importlib.import_module(package).Limits(max_connections=connections, max_keepalive_connections=connections)

"""The `AsyncOpenAI` client that all contenders on the openai package are given, so that they differ in nothing else."""

from __future__ import annotations

import importlib
from typing import Any

import openai
from scenario import API_KEY

SECONDS = 600.0


def openai_client(url: str, connections: int | None = None) -> openai.AsyncOpenAI:
    """A client for the server at `url`. `connections`: room in its pool for so many, None for the SDK's default.

    With room for many there is time too: by default each connection is given five seconds, which two thousand that are
    asked for at once do not get.
    """
    settings: dict[str, Any] = {} if connections is None else {"http_client": _roomy(connections), "timeout": SECONDS}
    return openai.AsyncOpenAI(base_url=url, api_key=API_KEY, **settings)


def _roomy(connections: int) -> Any:
    return openai.DefaultAsyncHttpxClient(limits=limits(connections))


def limits(connections: int) -> Any:
    """Limits of a pool, of the httpx that this version of openai is on."""
    package = "httpx2" if int(openai.__version__.partition(".")[0]) >= 3 else "httpx"  # noqa: PLR2004 - a major version
    return importlib.import_module(package).Limits(max_connections=connections, max_keepalive_connections=connections)

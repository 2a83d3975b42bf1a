"""The client that a swarm makes for itself: an `AsyncOpenAI` from the environment, on one of the SDK's two transports.

Decides the pool and its timeouts where the SDK's own do not fit. Never sends anything.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import sniffio

from ._errors import ConfigurationError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Transport: TypeAlias = Literal["httpx", "aiohttp"]

# aiohttp takes None for its own limit of 100. Thousands of runs may begin in one moment of the event loop, which is then
# busy for longer than the SDK's 5 s for a connection.
_MANY = 100_000
_CONNECT_SECONDS = 60.0
_REQUEST_SECONDS = 600.0  # the SDK's own


def make_client(transport: Transport = "httpx") -> AsyncOpenAI:
    """An `AsyncOpenAI()` from the environment. Raises ConfigurationError where it, or the transport, cannot be had."""
    # Imported here, because openai costs most of a second and many programs bring their own client, or none.
    import openai  # noqa: PLC0415

    try:
        return openai.AsyncOpenAI(**(_on_aiohttp() if transport == "aiohttp" else {}))
    except openai.OpenAIError as error:
        raise ConfigurationError(
            f"no client: set OPENAI_API_KEY, or pass AsyncSwarm(client=...), for example AsyncOpenAI(base_url=..., "
            f"api_key=...). The openai package says: {error}"
        ) from error


def _on_aiohttp() -> dict[str, Any]:
    """What makes an `AsyncOpenAI` use aiohttp, with room for every run in flight."""
    import openai  # noqa: PLC0415 - loaded by now

    if sniffio.current_async_library() != "asyncio":
        raise ConfigurationError("transport='aiohttp' is for asyncio; on trio leave it out")
    http = http_package(openai.__version__)
    timeout = http.Timeout(_REQUEST_SECONDS, connect=_CONNECT_SECONDS)
    limits = http.Limits(max_connections=_MANY, max_keepalive_connections=_MANY)
    try:
        return {"http_client": openai.DefaultAioHttpClient(limits=limits, timeout=timeout), "timeout": timeout}
    except RuntimeError as error:
        raise ConfigurationError("transport='aiohttp' needs aiohttp: pip install \"aswarm[aiohttp]\"") from error


@functools.cache
def http_package(version: str) -> Any:
    """The package that this version of openai is on: openai 3 is on httpx2, openai 2 on httpx."""
    return importlib.import_module("httpx2" if int(version.partition(".")[0]) >= 3 else "httpx")  # noqa: PLR2004 - the major version

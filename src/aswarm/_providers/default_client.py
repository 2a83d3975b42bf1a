"""The client that a swarm makes for itself: an `AsyncOpenAI` from the environment, on one of the SDK's two transports.

Decides the size and the timeouts of the connection pool if those of the SDK do not fit, and checks the key. Never sends
anything.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import sniffio

from aswarm._errors import ConfigurationError
from aswarm._text import how_to_install

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

Transport: TypeAlias = Literal["httpx", "aiohttp"]

# aiohttp reads None as its own limit of 100 connections. Thousands of runs may begin at once, and the event loop is then
# busy for longer than the 5 s that the SDK gives a connection.
_MANY = 100_000
_CONNECT_SECONDS = 60.0
_REQUEST_SECONDS = 600.0  # as in the SDK


class MissingKeyError(ConfigurationError):
    """The environment has no API key. A class of its own, so that the command line can name its options instead."""


def check_transport(transport: Transport, client: object) -> None:
    """Raise ConfigurationError for an unknown transport, and for one that would not be used."""
    if transport not in get_args(Transport):
        raise ConfigurationError(f"transport must be 'httpx' or 'aiohttp', not {transport!r}")
    if client is not None and transport != "httpx":
        raise ConfigurationError(
            "transport is for the client that AsyncSwarm makes; pass transport or client, not both"
        )


def make_client(transport: Transport = "httpx") -> AsyncOpenAI:
    """An `AsyncOpenAI()` from the environment. Raises ConfigurationError if it, or its transport, cannot be made."""
    return cast("AsyncOpenAI", _made("AsyncSwarm", "AsyncOpenAI", **(_on_aiohttp() if transport == "aiohttp" else {})))


def make_blocking_client() -> OpenAI:
    """An `OpenAI()` from the environment. Raises ConfigurationError if it finds no credentials."""
    return cast("OpenAI", _made("Swarm", "OpenAI"))


def _made(swarm: str, kind: str, **options: Any) -> Any:
    # Imported here: openai takes most of a second to import, and many programs pass a client of their own.
    import openai  # noqa: PLC0415

    try:
        client = getattr(openai, kind)(**options)
    except openai.OpenAIError as error:
        raise _no_client(swarm, kind, f" The openai package says: {error}") from error
    client.api_key = _clean_key(client.api_key, swarm, kind)
    return client


def _clean_key(key: str, swarm: str, kind: str) -> str:
    """The key without the white space around it: `echo` and mounted secrets end in a line break. Never quotes it."""
    stripped = key.strip()
    if key and not stripped:
        raise _no_client(swarm, kind, " OPENAI_API_KEY is set, and has white space only.")
    if not (stripped.isascii() and stripped.isprintable()):
        raise ConfigurationError(
            "OPENAI_API_KEY has a character that no HTTP header may have: a line break, another control character, or a "
            "letter or quotation mark beyond ASCII; copy the key again (it is not shown here)"
        )
    return stripped


def _no_client(swarm: str, kind: str, reason: str) -> ConfigurationError:
    return MissingKeyError(
        f"no client: set OPENAI_API_KEY, or pass {swarm}(client=...), for example {kind}(base_url=..., api_key=...)."
        f"{reason}"
    )


def _on_aiohttp() -> dict[str, Any]:
    """Arguments that make an `AsyncOpenAI` use aiohttp, with a connection for every concurrent run."""
    import openai  # noqa: PLC0415 - as above

    if sniffio.current_async_library() != "asyncio":
        raise ConfigurationError("transport='aiohttp' works on asyncio only; on trio leave it out")
    http = http_package(openai.__version__)
    timeout = http.Timeout(_REQUEST_SECONDS, connect=_CONNECT_SECONDS)
    limits = http.Limits(max_connections=_MANY, max_keepalive_connections=_MANY)
    try:
        return {"http_client": openai.DefaultAioHttpClient(limits=limits, timeout=timeout), "timeout": timeout}
    except RuntimeError as error:
        raise ConfigurationError(f"transport='aiohttp' needs aiohttp: {how_to_install('aiohttp')}") from error


@functools.cache
def http_package(version: str) -> Any:
    """The HTTP package of this version of openai: httpx2 for openai 3, httpx for openai 2."""
    return importlib.import_module("httpx2" if int(version.partition(".")[0]) >= 3 else "httpx")  # noqa: PLR2004 - the major version

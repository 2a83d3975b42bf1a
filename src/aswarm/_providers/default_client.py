"""Default client of a swarm: an `AsyncOpenAI` from the environment, on one of the SDK's two transports.

Chooses the transport, sets the size and the timeouts of aiohttp's connection pool, and checks the key. Never sends anything.
"""

from __future__ import annotations

import functools
import importlib
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import sniffio

from aswarm._runtime.backend import Work, task_spawner
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import how_to_install

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

Transport: TypeAlias = Literal["auto", "httpx", "aiohttp"]

# aiohttp reads None as its default of 100 connections. If thousands of runs start at once, the event loop is busy for
# longer than the SDK's 5 s to open a connection.
_MANY = 100_000
_CONNECT_SECONDS = 60.0
_REQUEST_SECONDS = 600.0  # as in the SDK


class MissingKeyError(ConfigurationError):
    """The environment has no API key. The command line catches it, and names its own options instead."""


def check_transport(transport: Transport, client: object) -> None:
    """Raise ConfigurationError for an unknown transport, and for a transport that would not be used."""
    if transport not in get_args(Transport):
        raise ConfigurationError(f"transport must be 'auto', 'httpx' or 'aiohttp', not {transport!r}")
    if client is not None and transport != "auto":
        raise ConfigurationError(
            "transport= is for the default client of AsyncSwarm; pass transport= or client=, not both"
        )


def make_client(transport: Transport = "auto") -> AsyncOpenAI:
    """Return an `AsyncOpenAI()` from the environment. "auto" is aiohttp if it can be used here, else httpx.

    Raises ConfigurationError if the client, or a transport that was named, cannot be made.
    """
    options: dict[str, Any] = {}
    if transport != "httpx":
        try:
            options = _on_aiohttp()
        except ConfigurationError:
            if transport == "aiohttp":
                raise
    client = cast("AsyncOpenAI", _made("AsyncSwarm", "AsyncOpenAI", **options))
    if options:
        weakref.finalize(client, _close_forgotten, options["http_client"], task_spawner())
    return client


def make_blocking_client() -> OpenAI:
    """Return an `OpenAI()` from the environment. Raises ConfigurationError if it finds no credentials."""
    return cast("OpenAI", _made("Swarm", "OpenAI"))


def _made(swarm: str, kind: str, **options: Any) -> Any:
    # Imported here because openai takes most of a second to import, and many programs pass their own client.
    import openai  # noqa: PLC0415

    try:
        client = getattr(openai, kind)(**options)
    except openai.OpenAIError as error:
        raise _no_client(swarm, kind, f" Error of the openai package: {error}") from None  # it has the whole text
    client.api_key = _clean_key(client.api_key, swarm, kind)
    return client


def _clean_key(key: str, swarm: str, kind: str) -> str:
    """Return the key without white space around it: `echo` and mounted secrets end with a line break. Errors hide it."""
    stripped = key.strip()
    if key and not stripped:
        raise _no_client(swarm, kind, " OPENAI_API_KEY is set, but contains only white space.")
    if not (stripped.isascii() and stripped.isprintable()):
        raise ConfigurationError(
            "OPENAI_API_KEY has a character that is invalid in an HTTP header: a line break, another control character, or a "
            "letter or quotation mark outside ASCII; copy the key again (it is not shown here)"
        )
    return stripped


def _no_client(swarm: str, kind: str, reason: str) -> ConfigurationError:
    return MissingKeyError(
        f"no client: set OPENAI_API_KEY, or pass {swarm}(client=...), for example {kind}(base_url=..., api_key=...)."
        f"{reason}"
    )


def _on_aiohttp() -> dict[str, Any]:
    """Return arguments that make an `AsyncOpenAI` use aiohttp, with a connection for every concurrent run."""
    import openai  # noqa: PLC0415 - as above

    if sniffio.current_async_library() != "asyncio":
        raise ConfigurationError("transport='aiohttp' works on asyncio only; on trio leave it out")
    if _has_socks_proxy():
        raise ConfigurationError(
            "transport='aiohttp' cannot use the SOCKS proxy of the environment; leave it out, or unset ALL_PROXY, "
            "HTTPS_PROXY and HTTP_PROXY"
        )
    http = http_package(openai.__version__)
    timeout = http.Timeout(_REQUEST_SECONDS, connect=_CONNECT_SECONDS)
    limits = http.Limits(max_connections=_MANY, max_keepalive_connections=_MANY)
    try:
        return {"http_client": openai.DefaultAioHttpClient(limits=limits, timeout=timeout), "timeout": timeout}
    except RuntimeError as error:
        raise ConfigurationError(f"transport='aiohttp' needs aiohttp: {how_to_install('aiohttp')}") from error


def _has_socks_proxy() -> bool:
    """Whether a proxy that httpx reads from the environment, or from the settings of the system, is a SOCKS proxy."""
    from urllib.request import getproxies  # noqa: PLC0415 - openai has imported it by now

    proxies = getproxies()
    return any(proxies.get(scheme, "").lower().startswith("socks") for scheme in ("http", "https", "all"))


def _close_forgotten(http_client: Any, start_task: Callable[[Work], object]) -> None:
    """Close the connections of a client that was collected. Without this, aiohttp logs an error for each of its objects."""
    if http_client.is_closed:
        return
    try:
        start_task(http_client.aclose)
    except RuntimeError:  # the loop is closed: no connection is left to wait for
        with suppress(StopIteration):
            http_client.aclose().send(None)
    warnings.warn(
        "an AsyncSwarm was not closed: use `async with AsyncSwarm()`, or await its aclose()",
        ResourceWarning,
        stacklevel=1,
    )


@functools.cache
@functools.cache
def http_package(version: str) -> Any:
    """Return the HTTP package of this version of openai: httpx2 for openai 3, httpx for openai 2."""
    return importlib.import_module("httpx2" if int(version.partition(".")[0]) >= 3 else "httpx")  # noqa: PLR2004 - the major version

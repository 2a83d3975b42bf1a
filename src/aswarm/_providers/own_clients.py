"""The clients that a swarm creates itself: the default client from the environment, and the time in which a swarm may use them.

The module chooses the transport, sets the size and the timeouts of the connection pool, and checks the key. It sends nothing.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast, get_args
from weakref import WeakKeyDictionary, WeakSet

import sniffio

from aswarm._runtime.backend import PerLoop, PerProcess, task_spawner
from aswarm._values.errors import ConfigurationError
from aswarm._values.settings import ApiName, Transport
from aswarm._values.text import how_to_install

from .environment import (
    CONNECT_SECONDS,
    REQUEST_SECONDS,
    check_proxies,
    clean_key,
    close_forgotten,
    missing_key,
    used_proxies,
)
from .http import HTTPSource

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from openai import AsyncOpenAI, OpenAI


class OwnClients:
    """One client for each event loop, because a connection works only on the loop that opened it; or one for the process.

    `scope`: returns the event loop, or an object for the process. `closed`: the error text of a closed swarm.
    """

    def __init__(self, clients: PerLoop[Any] | PerProcess[Any], scope: Callable[[], object], closed: str) -> None:
        self._clients = clients
        self._scope = scope
        self._text = closed
        self._lock = threading.Lock()
        self._blocks: WeakKeyDictionary[object, int] = WeakKeyDictionary()  # the number of open `with` blocks
        self._closed: WeakSet[object] = WeakSet()
        self.find = clients.find

    def get(self) -> Any:
        """Return the client, and create it if needed. Raises ConfigurationError if the swarm is closed."""
        if self._closed and self._scope() in self._closed:
            raise ConfigurationError(self._text)
        return self._clients.get()

    def enter(self, check: Callable[[], object]) -> None:
        """Start a block. `check` raises if there is no client."""
        scope = self._scope()
        self._closed.discard(scope)
        check()
        with self._lock:
            self._blocks[scope] = self._blocks.get(scope, 0) + 1

    def exit(self) -> bool:
        """End a block, and return whether it was the last one.

        `close` does not change the number: a block that was entered before it must not close the client of a later block.
        """
        with self._lock:
            self._blocks[self._scope()] -= 1
            return not self._blocks[self._scope()]

    def close(self) -> Any:
        """Close the swarm. Return its client, which the caller closes, or None."""
        self._closed.add(self._scope())
        return self._clients.pop()


# The number for "no limit": the SDK's aiohttp transport reads None as the default of aiohttp, 100 connections.
_MANY = 100_000


def check_transport(transport: Transport, client: object) -> None:
    """Raise ConfigurationError for an unknown transport. Also raise it for a transport with a client, which has its own."""
    if transport not in get_args(Transport):
        raise ConfigurationError(f"transport must be 'auto', 'httpx', 'aiohttp' or 'direct', not {transport!r}")
    if client is not None and transport != "auto":
        raise ConfigurationError(
            "transport= is for the default client of AsyncSwarm; pass transport= or client=, not both"
        )


def make_client(transport: Transport = "auto", api: ApiName = "auto") -> AsyncOpenAI | AsyncAnthropic | HTTPSource:
    """Return an `AsyncOpenAI()` from the environment. "auto" chooses aiohttp if possible, otherwise httpx.

    For "direct", return an `HTTPSource` for this API instead. For the API "anthropic", return an `AsyncAnthropic()`.

    Raises ConfigurationError if the client cannot be made, or if the transport "aiohttp" cannot be used.
    """
    check_proxies()
    if api == "anthropic":
        return cast("AsyncAnthropic", _anthropic_client("AsyncSwarm", "AsyncAnthropic", transport))
    if transport == "direct":
        return HTTPSource(api=api)
    options: dict[str, Any] = {}
    if transport != "httpx":
        try:
            options = _on_aiohttp()
        except ConfigurationError:
            if transport == "aiohttp":
                raise
    client = cast("AsyncOpenAI", _made("AsyncSwarm", "AsyncOpenAI", **options))
    if options:
        http_client = options["http_client"]
        is_closed = functools.partial(getattr, http_client, "is_closed")
        weakref.finalize(client, close_forgotten, "an AsyncSwarm", is_closed, http_client.aclose, task_spawner())
    return client


async def close_client(client: Any) -> None:
    await (client.aclose() if isinstance(client, HTTPSource) else client.close())


def make_blocking_client(api: ApiName = "auto") -> OpenAI | Anthropic:
    """Return an `OpenAI()` from the environment, or an `Anthropic()` for the API "anthropic".

    Raises ConfigurationError if the environment has no credentials.
    """
    check_proxies()
    if api == "anthropic":
        return cast("Anthropic", _anthropic_client("Swarm", "Anthropic"))
    return cast("OpenAI", _made("Swarm", "OpenAI"))


def _made(swarm: str, kind: str, **options: Any) -> Any:
    # Imported here, because the import of openai takes most of a second, and a program with its own client may not need it.
    import openai  # noqa: PLC0415 - as above

    _check_socks()
    try:
        client = getattr(openai, kind)(**options)
    except openai.OpenAIError as error:
        raise missing_key(swarm, kind, f" Error of the openai package: {error}") from None  # the text contains it
    if not client.api_key:  # the openai package accepts OPENAI_ADMIN_KEY instead, but not for completions
        raise missing_key(swarm, kind, " OPENAI_ADMIN_KEY is not for requests to models.")
    client.api_key = clean_key(client.api_key, swarm, kind)
    return client


def _check_socks() -> None:
    # Checked here, because a client of an SDK that is only half made logs errors when it is garbage-collected.
    if any(proxy.lower().startswith("socks") for proxy in used_proxies()) and find_spec("socksio") is None:
        raise ConfigurationError("the SOCKS proxy of the environment cannot be used: it needs the package socksio")


def _anthropic_client(swarm: str, kind: str, transport: Transport = "auto") -> Any:
    """Return a client of the anthropic package. Each concurrent run may have its own connection."""
    if transport in ("aiohttp", "direct"):
        raise ConfigurationError(
            f"transport={transport!r} is for the APIs of OpenAI; leave it out, or pass your own AsyncAnthropic(http_client=...)"
        )
    try:
        # Imported here, because the import takes most of a second.
        import anthropic  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"api='anthropic' needs the package anthropic: {how_to_install('anthropic')}"
        ) from error
    _check_socks()
    key, token = (os.environ.get(f"ANTHROPIC_{name}", "") for name in ("API_KEY", "AUTH_TOKEN"))
    if not (key or token):
        raise missing_key(swarm, kind, "", "ANTHROPIC_API_KEY")
    options = {"api_key": clean_key(key, swarm, kind, "ANTHROPIC_API_KEY")} if key else {}
    http = importlib.import_module(anthropic.Timeout.__module__.partition(".")[0])
    timeout = http.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS)
    return getattr(anthropic, kind)(**options, timeout=timeout)


def _on_aiohttp() -> dict[str, Any]:
    """Return arguments for an `AsyncOpenAI` on aiohttp. Each concurrent run may have its own connection."""
    import openai  # noqa: PLC0415 - as above

    if sniffio.current_async_library() != "asyncio":
        raise ConfigurationError("transport='aiohttp' works on asyncio only; on trio leave it out")
    if _has_socks_proxy():
        raise ConfigurationError(
            "transport='aiohttp' cannot use the SOCKS proxy of the environment; leave it out, or unset ALL_PROXY, "
            "HTTPS_PROXY and HTTP_PROXY"
        )
    http = http_package(openai.__version__)
    timeout = http.Timeout(REQUEST_SECONDS, connect=CONNECT_SECONDS)
    limits = http.Limits(max_connections=_MANY, max_keepalive_connections=_MANY)
    try:
        return {"http_client": openai.DefaultAioHttpClient(limits=limits, timeout=timeout), "timeout": timeout}
    except RuntimeError as error:
        raise ConfigurationError(f"transport='aiohttp' needs aiohttp: {how_to_install('aiohttp')}") from error


def _has_socks_proxy() -> bool:
    """Return whether the environment or the system settings have a SOCKS proxy, also if NO_PROXY is "*"."""
    from urllib.request import getproxies  # noqa: PLC0415 - openai has already imported it

    proxies = getproxies()
    return any(proxies.get(scheme, "").lower().startswith("socks") for scheme in ("http", "https", "all"))


@functools.cache
def http_package(version: str) -> Any:
    """Return the HTTP package of this version of openai: httpx2 for openai 3, httpx for openai 2."""
    return importlib.import_module("httpx2" if int(version.partition(".")[0]) >= 3 else "httpx")  # noqa: PLR2004 - the major version

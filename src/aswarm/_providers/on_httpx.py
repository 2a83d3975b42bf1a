"""Connections of an `HTTPSource` on trio, and for SOCKS proxies: one client of httpx for each event loop."""

from __future__ import annotations

import ssl
from typing import Any

import httpx

from aswarm._values.errors import ConfigurationError

from .answers import HttpxResponse
from .environment import Timeout, ssl_context
from .redirects import Outgoing


class HttpxConnections:
    """The connections of one event loop. Their number has no limit."""

    def __init__(self, timeout: Timeout, proxy: str | None, *, is_tls: bool) -> None:
        self._timeout = timeout
        self._proxy = proxy
        self._is_tls = is_tls
        # The certificates are slow to load. So they are loaded only for TLS: at once, or after a redirect from http to https.
        self._clients = {is_tls: self._client(is_tls)}

    def _client(self, is_tls: bool) -> httpx.AsyncClient:
        try:
            return httpx.AsyncClient(
                timeout=_timeout(self._timeout),
                proxy=self._proxy,
                trust_env=False,  # `proxy` and `verify` have been read from the environment already
                verify=ssl_context() if is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            )
        except ImportError as error:
            raise ConfigurationError(f"the SOCKS proxy of the environment cannot be used: {error}") from error

    async def send(self, request: Outgoing) -> HttpxResponse:
        method, url, content, headers, limit = request
        options: dict[str, Any] = {} if limit is None else {"timeout": _timeout(limit)}
        is_tls = self._is_tls or url.lower().startswith("https:")
        if is_tls not in self._clients:
            self._clients[is_tls] = self._client(is_tls)
        client = self._clients[is_tls]
        http_request = client.build_request(method, url, content=content, headers=dict(headers), **options)
        return HttpxResponse(await client.send(http_request, stream=True, follow_redirects=False))

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()


def _timeout(timeout: Timeout) -> httpx.Timeout:
    return httpx.Timeout(timeout.read, connect=timeout.connect, pool=None)

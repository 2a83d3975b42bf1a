"""Connections of an `HTTPSource` on trio, and for SOCKS proxies: one client of httpx for each event loop."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Mapping
from typing import Any

import anyio
import httpx

from aswarm._runtime.backend import HiddenGenerators
from aswarm._values.errors import ConfigurationError

from .compatible import CLOSE_SECONDS
from .environment import Timeout, ssl_context


class HttpxResponse:
    """The open response of one request."""

    has_ended = False

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._pieces: Any = None

    async def read(self) -> bytes:
        """Return the whole body."""
        return await self._response.aread()

    def next_piece(self) -> Awaitable[bytes]:
        """Return the next bytes; b"" at the end."""
        if self._pieces is None:
            self._pieces = self._response.aiter_bytes()
            # httpx starts nested generators here, and drops them before their end. It is enough to close the response.
            return HiddenGenerators(anext(self._pieces, b""), finalize=False)
        piece: Awaitable[bytes] = anext(self._pieces, b"")
        return piece

    async def aclose(self) -> None:
        """Close the connection, unless the whole body was read."""
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            if self._pieces is not None:
                await self._pieces.aclose()
            await self._response.aclose()


class HttpxConnections:
    """The connections of one event loop. Their number has no limit."""

    def __init__(self, headers: Mapping[str, str], timeout: Timeout, proxy: str | None, *, is_tls: bool) -> None:
        try:
            self._client = httpx.AsyncClient(
                headers=dict(headers),
                timeout=_timeout(timeout),
                proxy=proxy,
                trust_env=False,  # `proxy` and `verify` have been read from the environment already
                verify=ssl_context() if is_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                follow_redirects=True,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
            )
        except ImportError as error:
            raise ConfigurationError(f"the SOCKS proxy of the environment cannot be used: {error}") from error

    async def post(
        self, url: str, content: bytes, headers: Mapping[str, str] | None, limit: Timeout | None
    ) -> HttpxResponse:
        """Send a request. Return the response after its headers have arrived."""
        options: dict[str, Any] = {} if limit is None else {"timeout": _timeout(limit)}
        request = self._client.build_request("POST", url, content=content, headers=headers, **options)
        return HttpxResponse(await self._client.send(request, stream=True))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()


def _timeout(timeout: Timeout) -> httpx.Timeout:
    return httpx.Timeout(timeout.read, connect=timeout.connect, pool=None)

"""Connections of an `HTTPSource` on asyncio: one session of aiohttp for each event loop."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Awaitable, Callable, Mapping
from io import BytesIO
from typing import Any

import aiohttp
import yarl

from aswarm._runtime.backend import task_spawner

from .environment import Timeout, close_forgotten, ssl_context, without_credentials
from .redirects import Outgoing

# aiohttp writes bytes in one piece, and emits a ResourceWarning for more than 1 MiB. A BytesIO is written in small pieces.
_LARGEST_PIECE = 1 << 20
# Some gateways send headers that are longer than 8 kB, the default limit of aiohttp.
_LONGEST_HEADER = 1 << 16


class AiohttpResponse:
    """The open response of one request."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.read = response.read

    @property
    def has_ended(self) -> bool:
        return self._response.content.is_eof()

    def start_reading(self) -> Callable[[], Awaitable[bytes]]:
        return self._response.content.readany

    async def aclose(self) -> None:
        self._response.close()


class _Connector(aiohttp.TCPConnector):
    """Connector without a finalizer: `close_forgotten` closes it, in the process that has created it.

    A forked child must not close a connector of its parent. The child would send the end of the TLS session over the
    parent's connection.
    """

    def __del__(self, *_: object) -> None:
        pass


class AiohttpConnections:
    """The connections of one event loop. Their number has no limit."""

    def __init__(self, timeout: Timeout, proxy: str | None, *, is_tls: bool) -> None:
        # aiohttp sends the default headers of a session to the proxy too, so the session has none. The errors of aiohttp show
        # the URL of the proxy, so the URL has no password.
        proxy, self._credentials = without_credentials(proxy)
        connector = _Connector(limit=0, ssl=ssl_context() if is_tls else True)
        # The certificates are slow to load. So they are loaded only for TLS: above, or after a redirect from http to https.
        self._late_context = None if is_tls else functools.cache(ssl_context)
        session = self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=_timeout(timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=proxy,
            max_field_size=_LONGEST_HEADER,
            max_line_size=_LONGEST_HEADER,
        )
        self._url = functools.lru_cache(16)(yarl.URL)
        forget = functools.partial(_forget, session, os.getpid())
        weakref.finalize(self, close_forgotten, "an HTTPSource", forget, session.close, task_spawner())

    async def send(self, request: Outgoing) -> AiohttpResponse:
        method, address, content, headers, limit = request
        url = self._url(address)
        options: dict[str, Any] = {} if limit is None else {"timeout": _timeout(limit)}
        if url.scheme == "https" and self._late_context is not None:
            options["ssl"] = self._late_context()
        if self._credentials:
            # The proxy of a request over TLS is a tunnel: it reads only the headers of CONNECT.
            if url.scheme == "https":
                options["proxy_headers"] = self._credentials
            else:
                headers = {**headers, **self._credentials}
        data = content if len(content) <= _LARGEST_PIECE else BytesIO(content)
        response = await self._session.request(
            method, url, data=data, headers=headers, allow_redirects=False, **options
        )
        return AiohttpResponse(response)

    async def aclose(self) -> None:
        await self._session.close()


def _timeout(timeout: Timeout) -> aiohttp.ClientTimeout:
    # For aiohttp, `connect` also includes the DNS lookup and the wait for a free connection. `limit=0` avoids this wait.
    return aiohttp.ClientTimeout(connect=timeout.connect, sock_read=timeout.read)


def _forget(session: aiohttp.ClientSession, process: int) -> bool:
    """Return whether this process has nothing to close: the session is closed, or belongs to the parent process."""
    if os.getpid() != process:
        session.detach()
    return session.closed

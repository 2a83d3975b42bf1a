"""Connections to a server that is given as a URL.

Decides how long a read may take, adds the headers of the program, and keeps the HTTP status of an error, which the errors of
the SDK lack. Never decides what else is sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

_CONNECT_SECONDS = 30.0  # as in the SDK, and so is the next
_READ_SECONDS = 300.0
NO_REASON = "Server returned an error response"
STATUS_TEXTS = (NO_REASON, "Not Found")  # the texts of the SDK for a status without an error of JSON-RPC
_REASONS = {401: ", it wants authentication", 404: ", there is no MCP server at this path"}
_WANT_HEADERS = (401, 403)


class HttpTransport:
    """Opens a transport of the SDK for each session. `status`: the HTTP status of the last message that the server refused."""

    def __init__(self, url: str, timeout: float, headers: Mapping[str, str] | None = None) -> None:
        self.status: int | None = None
        self._url = url
        self._headers = headers
        # A server may send nothing until a call has ended.
        self._timeouts = httpx2.Timeout(_CONNECT_SECONDS, read=max(_READ_SECONDS, timeout))

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Any]:
        """The streams of one session."""
        hooks = {"response": [self._note]}
        async with (
            httpx2.AsyncClient(headers=self._headers, timeout=self._timeouts, event_hooks=hooks) as client,
            streamable_http_client(self._url, http_client=client) as streams,
        ):
            yield streams

    async def _note(self, response: httpx2.Response) -> None:
        if response.is_error and response.request.method == "POST":
            self.status = response.status_code

    def reason(self, text: str) -> str:
        """The text of an error. A text that the SDK has for a status is replaced by the status, and what to do about it."""
        if self.status is None or text not in STATUS_TEXTS:
            return text
        reason = f"HTTP status {self.status}{_REASONS.get(self.status, '')}"
        if self.status in _WANT_HEADERS:
            reason += '; MCPServer(url, headers={"Authorization": ...}) sends headers'
        return reason

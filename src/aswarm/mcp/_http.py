"""Connections to a server at a URL.

The module sets the timeouts and the headers. Some HTTP responses prove that a call has not run: the module recognises them. It
also keeps the HTTP status of a refused message, because the errors of the SDK do not have it. The errors have only codes and
texts, and a server can send each of these. So without such a response, `outcome_of` an error is that the call may have run.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from enum import Enum, auto
from http import HTTPStatus
from typing import Any

import httpx2
from mcp import MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED, HEADER_MISMATCH, INVALID_REQUEST, REQUEST_TIMEOUT

_CONNECT_SECONDS = 30.0  # this timeout and the next timeout are the defaults of the SDK
_READ_SECONDS = 300.0
NO_REASON = "Server returned an error response"
STATUS_TEXTS = (NO_REASON, "Not Found")  # the SDK's texts for a response that has only a status, and no JSON-RPC error
_REASONS = {401: ", it wants authentication", 404: ", there is no MCP server at this path"}
_WANT_HEADERS = (401, 403)
# The message of each response that proves that the call has not run. It is random, so that a server cannot send it.
_UNKNOWN_SESSION = "the server does not know the session any more"
NOT_RUN = f"{_UNKNOWN_SESSION} ({uuid.uuid4().hex})"
_REFUSALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)
_SESSION_HEADER = "mcp-session-id"
# The protocol requires 404 for an unknown session. After a restart, servers of the Python and TypeScript SDKs answer 400.
_NO_SESSION = (
    "Bad Request: Missing session ID",
    "Bad Request: No valid session ID provided",
    "Bad Request: Mcp-Session-Id header is required",
    "Invalid or missing session ID",
)


class _Client(httpx2.AsyncClient):
    """A client that recognises the responses which prove that a call has not run.

    It replaces these responses with the error `NOT_RUN`.
    """

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        response = await super().send(request, **options)
        if request.method != "POST" or response.status_code not in _REFUSALS or not await _has_not_run(response):
            return response
        await response.aclose()
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": NOT_RUN}}
        return httpx2.Response(response.status_code, json=error, request=request)


async def _has_not_run(response: httpx2.Response) -> bool:
    has_session = _SESSION_HEADER in response.request.headers
    if has_session and response.status_code == HTTPStatus.NOT_FOUND:
        return True
    try:
        error = json.loads(await response.aread())["error"]
        # HEADER_MISMATCH: the tool has changed since the server listed it.
        return error["code"] == HEADER_MISMATCH or (has_session and error["message"] in _NO_SESSION)
    except (httpx2.HTTPError, ValueError, LookupError, TypeError):
        return False


class HttpTransport:
    """Makes a transport of the SDK for each session. `status`: the HTTP status of the last message that the server refused."""

    def __init__(self, url: str, timeout: float, headers: Mapping[str, str] | None = None) -> None:
        self.status: int | None = None
        self._url = url
        self._headers = headers
        # A server may send nothing until the result of a call, so the read timeout is at least the timeout of a call.
        self._timeouts = httpx2.Timeout(_CONNECT_SECONDS, read=max(_READ_SECONDS, timeout))

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Any]:
        """Open a session, and yield its streams."""
        hooks = {"response": [self._note]}
        async with (
            _Client(headers=self._headers, timeout=self._timeouts, event_hooks=hooks) as client,
            streamable_http_client(self._url, http_client=client) as streams,
        ):
            yield streams

    async def _note(self, response: httpx2.Response) -> None:
        if response.is_error and response.request.method == "POST":
            self.status = response.status_code

    def reason(self, text: str) -> str:
        """Return the text of an error. If the SDK has only a general text, return the HTTP status and the remedy instead."""
        if text == NOT_RUN:
            return _UNKNOWN_SESSION
        if self.status is None or text not in STATUS_TEXTS:
            return text
        reason = f"HTTP status {self.status}{_REASONS.get(self.status, '')}"
        if self.status in _WANT_HEADERS:
            reason += '; MCPServer(url, headers={"Authorization": ...}) sends headers'
        return reason


class CallOutcome(Enum):
    ANSWERED = auto()  # the server refused the call, or the call failed; the session works
    UNREADABLE = auto()  # the server answered with an invalid result; the session works
    NOT_RUN = auto()  # the server no longer knows the session, or the tool has changed since the server listed it
    TIMED_OUT = auto()  # no answer in time; the session may work
    LOST = auto()  # the session was lost; the call may have run


# How the SDK's texts for an invalid result start. Other errors have the same codes.
_UNREADABLE = ("Failed to parse", "Unexpected content type", "server answered a request with 202")


def outcome_of(error: Exception) -> CallOutcome:
    """Return the outcome of the call that raised this error."""
    if not isinstance(error, MCPError):
        return CallOutcome.UNREADABLE
    if error.message == NOT_RUN:
        return CallOutcome.NOT_RUN
    if error.code == REQUEST_TIMEOUT:
        return CallOutcome.TIMED_OUT
    if error.code == CONNECTION_CLOSED or error.message == NO_REASON:
        return CallOutcome.LOST
    return CallOutcome.UNREADABLE if error.message.startswith(_UNREADABLE) else CallOutcome.ANSWERED

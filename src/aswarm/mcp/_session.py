"""A session with a server, which its own task opens and closes, and the connections to a server at a URL.

The SDK's client must be entered and exited in the same task. Other tasks only set events or wait for them. So one task may open
a session, a second may use it, and a third may close it. Sessions may be closed in any order.

Security: A list of a server or a series of questions without an end does not stop the program.

The module sets the timeouts and the headers. Some HTTP responses prove that a call has not run: the module recognises them. It
also keeps the HTTP status of a refused message, because the errors of the SDK do not have it. The errors have only codes and
texts, and a server can send each of these. So without such a response, `outcome_of` an error is that the call may have run.
"""

from __future__ import annotations

import json
import logging
import math
import uuid
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from enum import Enum, auto
from http import HTTPStatus
from itertools import islice
from operator import attrgetter
from typing import Any, cast

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED, HEADER_MISMATCH, INVALID_REQUEST, METHOD_NOT_FOUND, REQUEST_TIMEOUT, Tool

from aswarm._values.errors import CallerMistake
from aswarm._values.text import NO_RUN
from aswarm.extensions import BackgroundTask, without_current_call

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


_CLOSE_SECONDS = 5.0  # a server has this time to stop; afterwards, its process is killed, or its connection is dropped
# The time to stop for a server whose session is still being opened. Not 0: asyncio kills a process whose start is cancelled,
# but does not wait for its end.
_START_SECONDS = 0.5
# Limits for a list, because a broken server may always return another page, or a page without an end.
_MOST_PAGES = 100
_MOST_ITEMS = 10_000
_NAMED_BY = {"resources": "uri", "resource_templates": "uri_template"}
_NAMES = 10  # at most this number of names is logged

logger = logging.getLogger("aswarm")


class SessionError(Exception):
    """No session could be opened, so no tool was called. The text has the reason."""


class ServerSession:
    """A client of the SDK, in its own task. Creating this object starts the task. Any number of tasks may wait for `opened`."""

    def __init__(self, connect: Callable[[], Client], timeout: float, server: str) -> None:
        self._server = server
        self.tools: list[Tool] = []
        self._connect = connect
        self._timeout = timeout
        self._client: Client | None = None
        self._error: Exception | None = None
        self._ready = anyio.Event()
        self._closing = anyio.Event()
        self._ended = anyio.Event()
        with without_current_call():  # the session lives longer than a call that opens it
            self._task = BackgroundTask(self._run, self._end)

    async def _run(self) -> None:
        try:
            # The scope surrounds the client: cancel scopes must exit in reverse order. After opening, the deadline is removed.
            # The client has cancel scopes too, so one task must open and close it, and not the task of the call that needs it:
            # https://github.com/modelcontextprotocol/python-sdk/issues/79
            with anyio.CancelScope(deadline=anyio.current_time() + self._timeout) as opening:
                async with self._connect() as client:
                    self.tools = await every_page(self._server, "tools", client)
                    opening.deadline = math.inf
                    self._client = client
                    self._ready.set()
                    await self._closing.wait()
            if opening.cancelled_caught and not self._ready.is_set():
                self._error = TimeoutError(f"no answer within {self._timeout:g} s")
        except Exception as error:  # noqa: BLE001 - raised by `opened`
            self._error = first_error(error)

    def _end(self) -> None:
        self._ready.set()
        self._ended.set()

    @property
    def is_usable(self) -> bool:
        """Whether the session is open or being opened. It is False if the server has stopped: a call would be lost."""
        return not (self._closing.is_set() or self._ended.is_set() or _is_cut(self._client))

    @property
    def has_ended(self) -> bool:
        """Whether the task of the session has finished. Then the process or the connection has ended too."""
        return self._ended.is_set()

    async def opened(self) -> Client:
        """Wait until the session is open, and return its client. Raises SessionError if it cannot be opened."""
        await self._ready.wait()
        if self._client is None:
            raise SessionError(error_text(self._error or RuntimeError("it was closed meanwhile"))) from self._error
        return self._client

    def give_up(self) -> None:
        """Start to close the session. Calls without an answer fail, as they do if the connection closes."""
        self._closing.set()

    async def close(self) -> None:
        """Close the session and wait for its end, even if the current task is cancelled."""
        self.give_up()
        seconds = _CLOSE_SECONDS if self._ready.is_set() else _START_SECONDS
        try:
            with anyio.move_on_after(seconds, shield=True):
                await self._ended.wait()
        finally:
            await self._task.stop()


class Connection:
    """The sessions with one server, one at a time. If a session is lost, the next call opens a new session."""

    def __init__(self, name: str, connect: Callable[[], Client], timeout: float) -> None:
        self._name = name
        self._connect = connect
        self._timeout = timeout
        self._current: ServerSession | None = None
        self._given_up: list[ServerSession] = []
        self._is_closed = False

    def session(self) -> ServerSession:
        """Return the current session. If it is lost, return a new session, the same for all calls that lost the old session.

        Raises CallerMistake if the connection is closed.
        """
        if self._is_closed:
            raise CallerMistake(
                f"the MCP server {self._name} is closed; run the agent inside the block `async with MCPServer(...)`"
            )
        current = self._current
        if current is None or not current.is_usable:
            if current is not None:
                self.give_up(current)
            self._current = current = ServerSession(self._connect, self._timeout, self._name)
        return current

    def give_up(self, session: ServerSession) -> None:
        """Stop using this session, and start to close it."""
        session.give_up()
        still_open = [earlier for earlier in self._given_up if not earlier.has_ended and earlier is not session]
        self._given_up = [*still_open, session]

    async def close(self) -> None:
        """Close all sessions at the same time."""
        self._is_closed = True
        async with anyio.create_task_group() as group:
            for session in [*self._given_up, *([self._current] if self._current else ())]:
                group.start_soon(session.close)


def _is_cut(client: Client | None) -> bool:
    """Return whether the server has closed the streams. The SDK has no public attribute for this."""
    dispatcher = getattr(client and client.session, "_dispatcher", None)
    return bool(getattr(dispatcher, "_closed", False))


async def every_page(server: str, kind: str, client: Client) -> list[Any]:
    """Return the items of all pages of a list by name, without the SDK's cache. Each name is in the result once.

    They are sorted, because a server may change the order of its list, and tools are at the start of the prompt that is cached.
    A fault of the list (a cursor that comes again, pages without an end, a name that comes again) is logged with the name of the
    server, and the other items are returned. A server without such a list has no items.

    `kind`: "tools", "prompts", "resources" or "resource_templates".
    """
    name_of = attrgetter(_NAMED_BY.get(kind, "name"))
    items: dict[str, Any] = {}
    repeated: dict[str, None] = {}
    cursors: set[str | None] = set()
    cursor: str | None = None
    while cursor not in cursors and len(cursors) < _MOST_PAGES and len(items) < _MOST_ITEMS:
        cursors.add(cursor)
        try:
            page = await getattr(client, f"list_{kind}")(cursor=cursor, cache_mode="refresh")
        except MCPError as error:
            if error.code != METHOD_NOT_FOUND or cursor is not None:
                raise
            return []
        repeated |= dict.fromkeys(
            name_of(item) for item in getattr(page, kind) if items.setdefault(name_of(item), item) is not item
        )
        cursor = page.next_cursor
        if cursor is None:
            break
    is_whole = cursor is None and len(items) <= _MOST_ITEMS
    if fault := _fault(kind.replace("_", " "), cursor, cursors, repeated, is_whole=is_whole):
        logger.warning("the MCP server %s: %s", server, fault, extra=NO_RUN)
    return sorted(islice(items.values(), _MOST_ITEMS), key=name_of)


def _fault(
    kind: str, cursor: str | None, cursors: Collection[str | None], repeated: Collection[str], *, is_whole: bool
) -> str:
    """Return the fault of a list; empty for a list without a fault."""
    if cursor is not None and cursor in cursors:
        return f"its list of {kind} gives the cursor {cursor!r} again, so further pages were not read"
    if not is_whole:
        return f"its list of {kind} does not end, so only {_MOST_PAGES} pages or {_MOST_ITEMS:,} {kind} were read"
    names = ", ".join(sorted(repeated)[:_NAMES])
    return f"it lists {kind} more than once; the first of each name is used: {names}" if repeated else ""


def first_error(error: Exception) -> Exception:
    """Return the first error of an exception group, which the SDK's task groups raise. Return any other error unchanged."""
    while isinstance(error, ExceptionGroup):
        error = cast("ExceptionGroup[Exception]", error).exceptions[0]
    return error


def error_text(error: Exception) -> str:
    """Return the text of the error, or the name of its class if it has no text."""
    return str(error) or type(error).__name__

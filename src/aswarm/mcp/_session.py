"""A session with a server. Its own task opens it and closes it.

The SDK's client must be entered and exited in the same task. Other tasks only set events or wait for them. So one task may open
a session, a second may use it, and a third may close it. Sessions may be closed in any order.

Security: A list of a server or a series of questions without an end does not stop the program.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from itertools import islice
from operator import attrgetter
from typing import Any, cast

import anyio
from mcp import Client, MCPError
from mcp.types import METHOD_NOT_FOUND, Tool

from aswarm._values.errors import CallerMistake
from aswarm._values.text import NO_RUN
from aswarm.extensions import BackgroundTask, without_current_call

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

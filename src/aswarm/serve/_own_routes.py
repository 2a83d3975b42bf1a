"""Responses for your own routes. `respond` streams a run of a service; `stream_response` runs until its client disconnects."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import cast

import anyio
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from aswarm._record.entry_maker import EntryMaker, ErrorText, general_error
from aswarm._run.streams import EventStream
from aswarm._values.agent import Response
from aswarm._values.errors import ConfigurationError
from aswarm._values.messages import Message
from aswarm._values.text import NO_RUN
from aswarm.conversations import ConversationStream
from aswarm.runs import Run, Show, show_answers
from aswarm.runs.executors import LiveEntries, check_show

from ._endpoints import Refusal, refusal_response
from ._responses import HEARTBEAT_SECONDS, LogStream, StreamResponse, Wire, read_frames, while_connected
from .wires.native.wire import NativeWire

logger = logging.getLogger("aswarm")


def respond(
    run: Run,
    wire: Wire,
    request: Request,
    *,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    show: Show = show_answers,
) -> HttpResponse:
    """Return the response that streams a run of a service, for a route of Starlette or FastAPI.

    If a client reconnects on the native wire, the stream continues after the `Last-Event-ID` of the request. On the other
    wires, the client gets the whole run again. A client that already has all entries of a finished run gets 204. `show`:
    filters the entries; `show_everything` shows all. `heartbeat_seconds`: seconds of silence before a comment is sent.
    """
    check_show(show)
    try:
        after = _position_of(request) if isinstance(wire, NativeWire) else -1
    except Refusal as refusal:
        return refusal_response(refusal)
    # For a running run, do not send 204: readers may have entries that its record lacks, because they are not written yet.
    if not run.record.is_running and 0 <= run.record.last <= after:
        # A browser's EventSource reconnects after a 200, and stops after a 204:
        # https://html.spec.whatwg.org/multipage/server-sent-events.html
        return HttpResponse(status_code=204)
    return LogStream(run, wire, after=after, heartbeat_seconds=heartbeat_seconds, show=show)


def _position_of(request: Request) -> int:
    """Return the number of the last entry that the client has, or -1. Raises Refusal (400) if it is not a number."""
    number = request.headers.get("last-event-id") or request.query_params.get("after")
    if not number or number == "-1":
        return -1
    if not (number.isascii() and number.isdigit() and len(number) < 16):  # noqa: PLR2004 - fits the integers of a database
        raise Refusal(400, "invalid_position", "Last-Event-ID and after must be the number of an entry")
    return int(number)


def stream_response(
    run: AbstractAsyncContextManager[EventStream],
    wire: Wire,
    *,
    on_end: Callable[[Response], Awaitable[None]] | None = None,
    history: Sequence[Message] = (),
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    show: Show = show_answers,
    error_text: ErrorText = general_error,
) -> HttpResponse:
    """Return a response that runs `swarm.stream(...)`, or the stream of a conversation, until its client disconnects.

    This needs no service. A client cannot reconnect to this run.

    Args:
        run: The stream. Do not enter it with `async with`; the response does this.
        wire: A new wire for this client.
        on_end: An async function that gets the response at the end of the run, even if the run failed or was cancelled, and can
            save it. If the run could not start, the function is not called. A conversation stores its own runs, so its stream
            needs no `on_end`.
        history: The messages with which the run starts.
        heartbeat_seconds: Seconds of silence before a comment is sent.
        show: Filters the entries. `show_everything` shows all.
        error_text: A function that gets an exception and returns the error text for the client.

    Raises:
        ConfigurationError: If `on_end` is missing, and no conversation stores the run.
    """
    check_show(show)
    if on_end is None and not isinstance(cast("object", run), ConversationStream):
        raise ConfigurationError(
            "stream_response needs on_end=..., which saves the response; only a conversation saves its own"
        )
    return _BoundStream(run, wire, on_end, EntryMaker(history, error_text=error_text), heartbeat_seconds, show)


class _BoundStream(StreamResponse):
    def __init__(
        self,
        stream: AbstractAsyncContextManager[EventStream],
        wire: Wire,
        on_end: Callable[[Response], Awaitable[None]] | None,
        maker: EntryMaker,
        heartbeat_seconds: float,
        show: Show,
    ) -> None:
        super().__init__(wire)
        self._stream = stream
        self._on_end = on_end
        self._maker = maker
        self._entries = LiveEntries()
        self._frames = read_frames(None, wire, self._entries, heartbeat_seconds=heartbeat_seconds, show=show)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Execute the run and send its frames, until the run ends or the client disconnects."""
        if not await self.send_start(scope, send):
            return
        failures: list[Exception] = []
        async with while_connected(receive), anyio.create_task_group() as group:
            group.start_soon(self._run, failures)
            await self.send_frames(self._frames, send)
        for failure in failures:
            raise failure

    async def _run(self, failures: list[Exception]) -> None:
        """Execute the run, and make its entries.

        `failures`: gets an exception of `on_end`. If this method raised the exception, the task group would wrap it.
        """
        entries, run = self._entries, None
        try:
            async with self._stream as run:
                entries.add(self._maker.started(run.run_id, "", run.response.agent))
                async for event in run:
                    for entry in self._maker.event(event, run._state):
                        entries.add(entry)
        except Exception as error:
            fields = NO_RUN if run is None else {"run_id": run.run_id, "agent": run.response.agent.name}
            logger.warning("a run ended with an error", exc_info=error, extra=fields)
            state = None if run is None else run._state
            failed = self._maker.failed
            for entry in failed(error) if state is None else failed(error, state.response, state.turn):
                entries.add(entry)
        finally:
            entries.end()
            if run is not None and self._on_end is not None:
                with anyio.CancelScope(shield=True):
                    try:
                        await self._on_end(run.response)
                    except Exception as error:  # noqa: BLE001 - raised after the last frame
                        failures.append(error)

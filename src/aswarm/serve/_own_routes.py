"""For routes of one's own: a run of a service as a response, and a run without a service that lives as long as its request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

import anyio
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from aswarm._agent import Response
from aswarm._messages import Message
from aswarm._run.handlers import NO_RUN
from aswarm._run.streams import EventStream

from ._entry_maker import EntryMaker, ErrorText, general_error
from ._http import Refusal, error_response
from ._live import LiveEntries
from ._native import NativeWire
from ._responses import (
    HEARTBEAT_SECONDS,
    Encoder,
    FrameReader,
    RunStream,
    StreamResponse,
    while_connected,
)
from ._runs import Run
from ._show import Show, answers

logger = logging.getLogger("aswarm")


def position_of(request: Request) -> int:
    """The number of the last entry that the client has, -1 for none. Raises Refusal with 400 for what is no number."""
    given = request.headers.get("last-event-id") or request.query_params.get("after")
    if not given or given == "-1":
        return -1
    if not (given.isascii() and given.isdigit() and len(given) < 16):  # noqa: PLR2004 - digits of a number
        raise Refusal(400, "invalid_position", "Last-Event-ID and after are the number of an entry")
    return int(given)


def respond(
    run: Run,
    wire: Encoder,
    request: Request,
    *,
    heartbeat: float = HEARTBEAT_SECONDS,
    show: Show | None = answers,
) -> HttpResponse:
    """The response that streams a run of a service, in a route of Starlette or FastAPI.

    On the native wire a client that comes back continues after its `Last-Event-ID`; on the others it gets the whole run. A
    client that has all of an ended run gets 204. `show`: what readers get of an entry; None for all. `heartbeat`: seconds
    of silence after which a comment is sent.
    """
    try:
        after = position_of(request) if isinstance(wire, NativeWire) else -1
    except Refusal as refusal:
        return error_response(refusal)
    if has_all(run, after):
        return HttpResponse(status_code=204)  # else a browser's EventSource would ask without end
    reader = FrameReader(run, wire, after=after, heartbeat=heartbeat, show=show, draining=run.draining)
    return RunStream(run, reader, wire)


def has_all(run: Run, after: int) -> bool:
    """Whether a reader at this position has all entries of a run that has ended.

    Of a run that has not ended, a reader may have entries that its process has not written yet.
    """
    return not run.record.is_running and 0 <= run.record.last <= after


def stream_response(
    run: AbstractAsyncContextManager[EventStream],
    wire: Encoder,
    *,
    on_end: Callable[[Response], Awaitable[None]],
    history: Sequence[Message] = (),
    heartbeat: float = HEARTBEAT_SECONDS,
    show: Show | None = answers,
    error_text: ErrorText = general_error,
) -> HttpResponse:
    """A response that runs `swarm.stream(...)`, or a stream of a conversation, for as long as its client is there.

    There is no service, and no way back to the run. `on_end` gets what the run has left, however it ends: store it there. It is
    not called for a run that could not begin. `history`: the messages that the run begins with. `wire`, `heartbeat`, `show`: as
    for `respond`. `error_text`: as of `Service`.
    """
    return _BoundStream(run, wire, on_end, EntryMaker(history, error_text=error_text), heartbeat, show)


class _BoundStream(StreamResponse):
    def __init__(
        self,
        stream: AbstractAsyncContextManager[EventStream],
        wire: Encoder,
        on_end: Callable[[Response], Awaitable[None]],
        maker: EntryMaker,
        heartbeat: float,
        show: Show | None,
    ) -> None:
        super().__init__(wire)
        self._stream = stream
        self._wire = wire
        self._on_end = on_end
        self._maker = maker
        self._heartbeat = heartbeat
        self._show = show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run, and send the frames, until the run has ended or the client has gone."""
        if not await self.send_start(scope, send):
            return
        entries = LiveEntries()
        failures: list[Exception] = []
        reader = FrameReader(entries, self._wire, heartbeat=self._heartbeat, show=self._show)

        async def work() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(self._run, entries, failures)
                await self.send_frames(reader, send)

        await while_connected(work, receive, None)
        _raise_first(failures)

    async def _run(self, entries: LiveEntries, failures: list[Exception]) -> None:
        """Make the entries. What `on_end` raises goes into `failures`: a task group would wrap it."""
        run: EventStream | None = None
        try:
            async with self._stream as run:
                entries.add(self._maker.started(run.run_id, "", run.response.agent))
                async for event in run:
                    for entry in self._maker.event(event, lambda run=run: run.response):  # type: ignore[misc]
                        entries.add(entry)
        except Exception as error:
            fields = NO_RUN if run is None else {"run_id": run.run_id, "agent": run.response.agent.name}
            logger.warning("a run has ended with an error", exc_info=error, extra=fields)
            for entry in self._maker.failed(error, None if run is None else run.response):
                entries.add(entry)
        finally:
            entries.end()
            with anyio.CancelScope(shield=True):
                if run is not None:
                    await self._keep(run.response, failures)

    async def _keep(self, response: Response, failures: list[Exception]) -> None:
        try:
            await self._on_end(response)
        except Exception as error:  # noqa: BLE001 - raised once the frames are sent
            failures.append(error)


def _raise_first(failures: Sequence[Exception]) -> None:
    for failure in failures:
        raise failure

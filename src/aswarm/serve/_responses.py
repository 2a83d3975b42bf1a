"""Responses that stream a run: frames, heartbeats, clients that disconnect, and the shutdown of the service.

A response waits for the message `http.disconnect` of its client. Starlette does not do this on a server with ASGI 2.4: there,
`send` raises if the client has disconnected. But while a tool is silent, a stream sends nothing, and would not notice this.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain
from types import FrameType
from typing import Any, Protocol

import anyio
from starlette.responses import Response as HttpResponse
from starlette.types import Message, Receive, Scope, Send

from aswarm._record.entries import ENDINGS, Entry, joined, now
from aswarm._runtime.backend import scheduler
from aswarm._values.errors import ConfigurationError
from aswarm.runs import Run, RunNotFound, Show, show_answers
from aswarm.runs.executors import LiveEntries, Notifier, check_show, registry_of

from .wires.turns import HEARTBEAT, RECONNECT

# A proxy that compresses a stream would also buffer it: RFC 9111, section 5.2.2.6. The second header stops the buffering of nginx:
# https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_buffering
HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
# The interval that the HTML standard suggests: https://html.spec.whatwg.org/multipage/server-sent-events.html#authoring-notes
HEARTBEAT_SECONDS = 15.0
_GRACE = 3.0  # when the service stops, a client has these seconds to read the last frames


class Wire(Protocol):
    """A wire for one reader: encodes the entries of a run as frames."""

    @property
    def media_type(self) -> str:
        """Content type of the frames."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of a response with these frames, without the content type."""
        ...

    def encode(self, entry: Entry, /) -> Iterable[bytes]:
        """Return the frames of the next entry."""
        ...


async def frames(
    run: Run, wire: Wire, *, after: int = -1, heartbeat_seconds: float = HEARTBEAT_SECONDS, show: Show = show_answers
) -> AsyncGenerator[bytes, None]:
    """Yield the frames of a run until it ends: first the recorded entries, then live entries. Works with any web framework.

    Args:
        run: The run.
        wire: A new wire for this reader.
        after: The number of the last entry that the reader has.
        heartbeat_seconds: Seconds of silence before a comment is sent.
        show: Filters the entries. `show_everything` shows all.
    """
    check_show(show)
    if not isinstance(run, Run):  # pyright: ignore[reportUnnecessaryIsInstance] - the stream of a swarm is a frequent mistake
        raise ConfigurationError(
            f"frames() needs a Run, not {type(run).__name__}; stream_response() sends a stream of a swarm"
        )
    with registry_of(run).notifier.reading(run.record) as live:
        pieces = read_frames(
            run,
            wire,
            live,
            after=after,
            heartbeat_seconds=heartbeat_seconds,
            show=show,
            notifier=registry_of(run).notifier,
        )
        async with aclosing(pieces):
            async for data in pieces:
                yield data


async def read_frames(
    run: Run | None,
    wire: Wire,
    live: LiveEntries | None,
    *,
    after: int = -1,
    heartbeat_seconds: float,
    show: Show,
    notifier: Notifier | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the frames of a run, and heartbeats.

    `run`: reads the entries that are not in `live`. `notifier`: when it drains, the generator stops early, with a frame that
    makes a browser reconnect.
    """
    seconds = heartbeat_seconds / 2  # a heartbeat follows two silent waits in a row, so no clock is read
    is_last = is_silent = False
    while not is_last:
        wait = 0 if notifier is not None and notifier.is_draining else seconds
        entries = () if live is None else await live.next(after, wait)
        if entries == () and run is not None:
            entries = await _read_log(run, after, wait)
        if entries:
            last = entries[-1]
            after, is_last = last.seq, last.type in ENDINGS  # not `last.is_last`, to save a frame for each piece
            data = _encoded(entries, wire, show)
        elif entries is not None:
            return
        elif notifier is not None and notifier.is_draining:
            data, is_last = RECONNECT, True
        else:
            data, is_silent = HEARTBEAT if is_silent else b"", True
        if data:
            is_silent = False
            yield data


async def _read_log(run: Run, after: int, seconds: float) -> Sequence[Entry] | None:
    """Return the next entries; an empty list after the last entry; None if no entry comes within this number of seconds.

    If the run was deleted, the result is a last entry: the response has started, so the client cannot get a 404.
    """
    try:
        return await registry_of(run).next(run.id, after, run.record.user, seconds)
    except RunNotFound as error:
        text = str(error)
        fields = {"error": {"type": type(error).__name__, "message": text, "public_message": text}}
        return [Entry(after + 1, now(), "RunFailed", fields)]


def _encoded(entries: Sequence[Entry], wire: Wire, show: Show) -> bytes:
    shown = [*filter(None, map(show, entries))]
    return b"".join(chain.from_iterable(map(wire.encode, joined(shown) if len(shown) > 1 else shown)))


class StreamResponse(HttpResponse):
    """Base class of responses that stream the frames of a wire."""

    def __init__(self, wire: Wire, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(None, headers={**HEADERS, **wire.headers, **(headers or {})}, media_type=wire.media_type)
        del self.headers["content-length"]

    async def send_start(self, scope: Scope, send: Send) -> bool:
        """Send the status and the headers. Returns whether to send a body.

        A HEAD request gets no body. A client that has disconnected gets no body either.
        """
        head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        if not await _is_sent(send, head):
            return False
        if scope["method"] == "HEAD":
            await _is_sent(send, _END)
        return bool(scope["method"] != "HEAD")

    @staticmethod
    async def send_frames(frames: AsyncGenerator[bytes, None], send: Send) -> None:
        """Send the frames until the client disconnects, then the end of the body."""
        async with aclosing(frames):
            async for data in frames:
                try:  # not `_is_sent`, to save a frame for each piece
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                except OSError:
                    return
        await _is_sent(send, _END)


_END: Message = {"type": "http.response.body", "body": b"", "more_body": False}


async def _is_sent(send: Send, message: Message) -> bool:
    """Send a part of a response. Returns False if the client has disconnected.

    With ASGI 2.4, `send` then raises OSError: https://asgi.readthedocs.io/en/latest/specs/www.html#disconnected-client-send-exception
    """
    try:
        await send(message)
    except OSError:
        return False
    return True


class LogStream(StreamResponse):
    """Response with the frames of a run. The service owns the run, which continues if the client disconnects."""

    def __init__(
        self,
        run: Run,
        wire: Wire,
        *,
        after: int = -1,
        heartbeat_seconds: float,
        show: Show,
        headers: Mapping[str, str] | None = None,
        patience: float | None = None,
    ) -> None:
        """`patience`: seconds that the response may continue when the service stops. By default 0: the reader must reconnect."""
        super().__init__(wire, headers)
        self._run = run
        self._patience = patience or 0
        notifier = registry_of(run).notifier if patience is None else None
        self._read = partial(
            read_frames, run, wire, after=after, heartbeat_seconds=heartbeat_seconds, show=show, notifier=notifier
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames until the run ends or the client disconnects."""
        with (
            nullcontext()
            if scope["method"] == "HEAD"
            else registry_of(self._run).notifier.reading(self._run.record) as live
        ):
            if await self.send_start(scope, send):
                async with while_connected(receive, registry_of(self._run).notifier, self._patience):
                    await self.send_frames(self._read(live), send)


@asynccontextmanager
async def while_connected(
    receive: Receive, notifier: Notifier | None = None, patience: float = 0
) -> AsyncGenerator[None]:
    """Cancel the block when the client disconnects.

    When the service stops, cancel the block after `patience` and a grace period, because a client may have stopped reading.
    """
    failure: Exception | None = None
    scope, watching = anyio.CancelScope(), anyio.CancelScope()

    async def watch_client() -> None:
        with watching:
            while (await receive())["type"] != "http.disconnect":
                pass
            scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch_client)
        with scope, nullcontext() if notifier is None else notifier.stops_scope(scope, patience + _GRACE):
            try:
                yield
            except Exception as error:  # noqa: BLE001 - raised below, because the task group would wrap it
                failure = error
        watching.cancel()
    if failure is not None:
        raise failure


# --- shutdown ---

# uvicorn waits for all streams before it ends the lifespan, but a stream ends only after the service stops. If the service waited
# for the end of its lifespan, both would wait forever. So the service handles the signal itself, before the handler of the server.
_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_shutdown_signal(call: Callable[[], None]) -> Generator[None]:
    """In this block, SIGTERM and SIGINT first schedule `call` on the event loop, and then run the previous handler.

    Outside of the main thread, the block does nothing. The block also ignores a signal that has no handler in Python.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    schedule = scheduler()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in _ENDING}

    def handle(number: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            schedule(call)
        before[number](number, frame)

    ours = [number for number in _ENDING if callable(before[number])]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is handle:  # otherwise the server has already set its own handler
                signal.signal(number, before[number])

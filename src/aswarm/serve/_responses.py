"""Responses that stream a run: frames, heartbeats, and what happens when the client or the service goes.

A reader looks for the end of its client by itself. Where a server says ASGI 2.4, Starlette waits for `send` to raise, which
it does not do while a tool is silent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Protocol

import anyio
from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from ._entries import Entry, joined
from ._native import HEARTBEAT, retry
from ._runs import Run
from ._show import Show, answers
from ._shutdown import Draining

HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
HEARTBEAT_SECONDS = 15.0
_BACK_AFTER = 1000  # milliseconds after which a reader of a service that restarts comes back
_GRACE = 3.0  # seconds that a client has to take the last frames when the service ends


class Encoder(Protocol):
    """A wire for one reader: turns the entries of a run into frames."""

    @property
    def media_type(self) -> str:
        """The content type of the frames."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of a response with these frames, besides the content type."""
        ...

    def encode(self, entry: Entry, /) -> Iterable[bytes]:
        """The frames of the next entry."""
        ...


class Readable(Protocol):
    """What has a log to read, such as a `Run`."""

    async def read(self, after: int, /) -> Sequence[Entry]:
        """Some entries with numbers above `after`, once there is one; empty after the last one."""
        ...


class FrameReader:
    """Reads a run as frames, from one position on. A call of `next` that is cancelled loses nothing.

    `show`: what this reader gets of an entry, None for nothing. `draining`: ends the reading early, with a frame that tells
    a browser to come back.
    """

    def __init__(
        self,
        run: Readable,
        encoder: Encoder,
        *,
        after: int = -1,
        heartbeat: float = HEARTBEAT_SECONDS,
        show: Show | None = None,
        draining: Draining | None = None,
    ) -> None:
        self._run = run
        self._encoder = encoder
        self._position = after
        self._heartbeat = heartbeat
        self._show = show
        self._draining = draining or Draining()
        self._has_ended = False

    async def _read(self) -> Iterable[Entry] | None:
        with self._draining.interrupts(self._heartbeat):  # one scope: each costs more than the frames of an entry
            return await self._run.read(self._position)
        return None

    async def next(self) -> bytes | None:
        """The next bytes, a heartbeat if there is nothing to say for long; None at the end."""
        while not self._has_ended:
            if data := self._bytes_of(await self._read()):
                return data
        return None

    def _bytes_of(self, batch: Iterable[Entry] | None) -> bytes:
        """What is sent for these entries; None if the wait for them has ended without any."""
        if batch is None and not self._draining.is_set:
            return HEARTBEAT
        if not batch:
            self._has_ended = True
            return retry(_BACK_AFTER) if batch is None else b""
        return self._encoded(list(batch))

    def _encoded(self, batch: list[Entry]) -> bytes:
        self._position, self._has_ended = batch[-1].seq, batch[-1].is_last
        shown = batch if self._show is None else [each for entry in batch if (each := self._show(entry)) is not None]
        return b"".join(frame for entry in joined(shown) for frame in self._encoder.encode(entry))


async def frames(
    run: Run, wire: Encoder, *, after: int = -1, heartbeat: float = HEARTBEAT_SECONDS, show: Show | None = answers
) -> AsyncGenerator[bytes, None]:
    """The frames of a run, for any web framework: those that are there, then the live ones, until the run has ended.

    `wire`: made for this reader. `after`: the number of the last entry that the reader has. `heartbeat`: seconds of silence
    after which a comment is sent. `show`: what the reader gets of an entry; None for all.
    """
    reader = FrameReader(run, wire, after=after, heartbeat=heartbeat, show=show, draining=run.draining)
    with run.reading():
        while (data := await reader.next()) is not None:
            yield data


class StreamResponse(HttpResponse):
    """A streaming response that is sent while the client is there: frames of a wire."""

    def __init__(self, wire: Encoder, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(None, headers={**HEADERS, **wire.headers, **(headers or {})}, media_type=wire.media_type)
        del self.headers["content-length"]

    async def send_start(self, scope: Scope, send: Send) -> bool:
        """Send the head. Returns whether a body is wanted: not if the client has gone."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:  # a server of ASGI 2.4 says so of a client that has gone
            return False
        return bool(scope["method"] != "HEAD")

    @staticmethod
    async def send_frames(reader: FrameReader, send: Send) -> None:
        """Send all frames."""
        while (data := await reader.next()) is not None:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class RunStream(StreamResponse):
    """The frames of a run as a response. The client may go: the run belongs to the service."""

    def __init__(
        self,
        run: Run,
        reader: FrameReader,
        wire: Encoder,
        headers: Mapping[str, str] | None = None,
        *,
        patience: float = 0,
    ) -> None:
        """`patience`: seconds for which the response may go on when the service ends."""
        super().__init__(wire, headers)
        self._run = run
        self._reader = reader
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames, until the run has ended or the client has gone."""
        with nullcontext() if scope["method"] == "HEAD" else self._run.reading():
            if await self.send_start(scope, send):
                work = partial(self.send_frames, self._reader, send)
                await while_connected(work, receive, self._run.draining, self._patience)


async def while_connected(
    work: Callable[[], Awaitable[None]], receive: Receive, draining: Draining | None, patience: float = 0
) -> None:
    """Work until the work has ended, or the client has gone.

    When the service ends, a client that takes nothing is left, `patience` seconds and a moment later.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as group:

        async def watch_client() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async def watch_service(draining: Draining) -> None:
            with draining.interrupts():
                await anyio.sleep_forever()
            await anyio.sleep(patience + _GRACE)
            group.cancel_scope.cancel()

        group.start_soon(watch_client)
        if draining is not None:
            group.start_soon(watch_service, draining)
        try:
            await work()
        except OSError:  # a server of ASGI 2.4 says so of a client that has gone
            pass
        except Exception as error:  # noqa: BLE001 - raised below, outside of the group, which would wrap it
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure

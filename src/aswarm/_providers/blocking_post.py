"""An async `post` over a blocking client of openai or anthropic, and its raw response with async methods."""

from __future__ import annotations

import functools
import math
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import anyio

from aswarm._runtime import seams

from .compatible import BlockingCall


@dataclass(frozen=True, eq=False)
class BlockingPost:
    """An async `post`, like the method of an async client, for a blocking client: the only method that completions need.

    `Swarm` decides in which thread the code of the client is called. A thread is chosen here only for the end of a response.
    """

    client: Any
    call: BlockingCall

    @property
    def max_retries(self) -> int:
        retries: int = self.client.max_retries
        return retries

    async def post(self, path: str, **options: Any) -> _BlockingResponse:
        """Send a request and return the raw response. The client ignores `stream_cls` for a raw response."""
        response = await self.call(functools.partial(self.client.post, path, **options))
        return _BlockingResponse(response, self.call)


@dataclass(frozen=True, eq=False)
class _BlockingResponse:
    """A blocking raw response with the methods of an async response."""

    response: Any
    call: BlockingCall

    @property
    def content(self) -> bytes:
        content: bytes = self.response.content
        return content

    async def aiter_bytes(self) -> AsyncGenerator[bytes, None]:
        read = functools.partial(next, self.response.iter_bytes(), None)
        while (piece := await self._read(read)) is not None:
            yield piece

    async def _read(self, read: Callable[[], bytes | None]) -> bytes | None:
        if anyio.current_effective_deadline() == math.inf:
            return await self.call(read)
        # With a deadline (see `DRAIN_SECONDS`), the read must end in time. A blocking read cannot be cancelled, so it runs in
        # a thread that can be abandoned.
        try:
            return await seams.run_sync(read, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        # `close` alone does not close the connection while the abandoned thread still reads from it.
        stream = self.response.extensions.get("network_stream")  # documented by httpx; absent with some transports
        connection = None if stream is None else stream.get_extra_info("socket")
        with suppress(OSError):
            if connection is not None:
                connection.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        await self.call(self.response.close, must_run=True)

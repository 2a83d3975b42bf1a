"""A blocking `OpenAI` with the one method of an `AsyncOpenAI` that completions need.

Decides only where the end of a response is read. `Swarm` decides where the code of the client is called.
"""

from __future__ import annotations

import functools
import math
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import anyio
import anyio.to_thread

from .compatible import BlockingCall


class BlockingPost:
    """`AsyncOpenAI.post`, by means of a blocking `OpenAI`."""

    def __init__(self, client: Any, call: BlockingCall) -> None:
        self._client = client
        self._call = call

    @property
    def max_retries(self) -> int:
        retries: int = self._client.max_retries
        return retries

    async def post(self, path: str, **options: Any) -> _BlockingResponse:
        """Send a request; the response is raw. `stream_cls` among the options may be async: it is not used for those."""
        response = await self._call(functools.partial(self._client.post, path, **options))
        return _BlockingResponse(response, self._call)


class _BlockingResponse:
    """A blocking raw response with the methods of an async one."""

    def __init__(self, response: Any, call: BlockingCall) -> None:
        self._response = response
        self._call = call

    @property
    def content(self) -> bytes:
        content: bytes = self._response.content
        return content

    async def aiter_bytes(self) -> AsyncGenerator[bytes, None]:
        read = functools.partial(next, self._response.iter_bytes(), None)
        while (piece := await self._read(read)) is not None:
            yield piece

    async def _read(self, read: Callable[[], bytes | None]) -> bytes | None:
        if anyio.current_effective_deadline() == math.inf:
            return await self._call(read)
        # What follows the last event is waited for briefly, so it is read in a thread that can be left behind.
        try:
            return await anyio.to_thread.run_sync(read, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        # `close` alone would leave the connection open as long as the thread reads from it.
        if (connection := _connection_of(self._response)) is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        await self._call(self._response.close, must_run=True)


def _connection_of(response: Any) -> socket.socket | None:
    stream = response.extensions.get("network_stream")  # httpx documents it; another transport may have none
    return None if stream is None else stream.get_extra_info("socket")

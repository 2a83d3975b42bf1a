"""The reader of answers that arrive as bytes: the chunks of a stream, and the errors of an interrupted stream.

`OpenAISource` and `HTTPSource` send a request, and read its answer with this module. A decoder parses the bytes. This module
decides when a stream has ended, and when its connection can be reused.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import anyio

from aswarm._runtime.backend import HiddenGenerators
from aswarm._values.errors import AswarmError, StreamInterrupted
from aswarm._wire.responses_events import EventDecoder
from aswarm._wire.sse import AnswerDecoder

from .compatible import CLOSE_SECONDS, error_text

# Some servers send [DONE] and do not end the body. After this time, the source closes the connection.
DRAIN_SECONDS = 0.1


class OpenResponse(Protocol):
    """Protocol of the open response of one request."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def read(self) -> Callable[[], Awaitable[bytes]]:
        """The function that reads the whole body."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether all bytes have arrived. After the last byte, another request may already use the connection."""
        ...

    def start_reading(self) -> Callable[[], Awaitable[bytes]]:
        """Return the function that reads the next bytes; b"" at the end."""
        ...

    async def aclose(self) -> None:
        """Close the connection, unless the whole body was read."""
        ...


async def streamed(
    send: Callable[[], Awaitable[OpenResponse]], make_decoder: Callable[[], AnswerDecoder | EventDecoder]
) -> AsyncGenerator[Mapping[str, Any], None]:
    """Send the request, and yield the chunks of its answer. Raises StreamInterrupted if the stream is cut."""
    response = await send()
    decoder = make_decoder()
    try:
        next_piece = response.start_reading()
        # httpx starts nested generators here, and drops them before their end. Closing the response also closes them.
        piece = await HiddenGenerators(next_piece(), finalize=False)
        while piece:
            for chunk in decoder.feed(piece):
                yield chunk
            piece = b"" if decoder.is_done else await next_piece()
        if decoder.is_done and not response.has_ended:
            # A connection can be reused only after the end of the body. So read the bytes after the last event, if any.
            with anyio.move_on_after(DRAIN_SECONDS), suppress(Exception):
                while await next_piece():
                    pass
        for chunk in decoder.end():
            yield chunk
    except AswarmError:
        raise
    except Exception as error:
        raise StreamInterrupted(f"the stream was cut: {error_text(error)}") from error
    finally:
        await response.aclose()


class HttpxResponse:
    """The open response of one request through httpx or httpx2, in any version."""

    has_ended = False

    def __init__(self, response: Any) -> None:
        self._response = response
        self._pieces: AsyncGenerator[bytes, None] | None = None

    @property
    def status(self) -> int:
        status: int = self._response.status_code
        return status

    @property
    def headers(self) -> Mapping[str, str]:
        headers: Mapping[str, str] = self._response.headers
        return headers

    async def read(self) -> bytes:
        body: bytes = await self._response.aread()
        return body

    def start_reading(self) -> Callable[[], Awaitable[bytes]]:
        next_of: Any = anext  # no type checker knows the overloads of anext in a partial
        self._pieces = self._response.aiter_bytes()
        return functools.partial(next_of, self._pieces, b"")

    async def aclose(self) -> None:
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            if self._pieces is not None:
                await self._pieces.aclose()
            await self._response.aclose()

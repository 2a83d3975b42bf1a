"""Answers that are checked before their first chunk is passed on: for middleware that may ask again.

Decides what of an answer can be known before that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from aswarm._wire.accumulator import Accumulator, provider_error
from aswarm._wire.whole import whole_message


async def checked(
    chunks: AsyncGenerator[Mapping[str, Any], None], *, stream: bool
) -> AsyncGenerator[Mapping[str, Any], None]:
    """The same chunks. Raises, before the first one, the CompletionError that the run would raise when it reads them.

    Of a stream it is known whether its first chunk reports an error, as some servers do with status 200, and whether it is
    empty. A completion that was asked for whole is read to its end.
    """
    async with aclosing(chunks):
        if not stream:
            received = [chunk async for chunk in chunks]
            _check(received)
            for chunk in received:
                yield chunk
            return
        has_begun = False
        async for chunk in chunks:
            if not has_begun and (reported := chunk.get("error")):
                raise provider_error(reported)
            has_begun = True
            yield chunk
        if not has_begun:
            _check([])


def _check(received: list[Mapping[str, Any]]) -> None:
    if len(received) != 1 or whole_message(received[0]) is None:
        accumulator = Accumulator()
        for chunk in received:
            accumulator.feed(chunk)
        accumulator.finish()

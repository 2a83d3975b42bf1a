"""The user stops an answer while one call has finished and one runs.

Follows https://docs.langchain.com/oss/python/langgraph/errors/INVALID_CHAT_HISTORY: the state has the finished result, and the
program adds a `ToolMessage` for the open call. Its text is the program's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from common import go_on_with, say, stored
from stage import book_hotel, book_train, main, seen


async def cancel() -> None:
    """Start a run, and cancel its task while the second call runs."""
    async with stored(book_hotel, book_train) as desk:
        task = asyncio.create_task(say(desk, "Book the hotel and the train."))
        await seen("book_train")
        await asyncio.sleep(0.5)  # the other call has finished
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def go_on() -> None:
    """Continue the conversation in another process."""
    async with stored(book_hotel, book_train) as desk:
        await go_on_with(desk)


if __name__ == "__main__":
    main(cancel, go_on)

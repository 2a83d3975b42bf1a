"""The user stops an answer while one call has finished and one runs.

Follows https://openai.github.io/openai-agents-python/streaming/ ("Cancel streaming") with a session.
"""

from __future__ import annotations

import asyncio

from agents import Runner
from common import agent, session, tool
from stage import GO_ON, book_hotel, book_train, main, seen

DESK = agent(tool(book_hotel), tool(book_train))


async def cancel() -> None:
    """Start a run, and cancel it while the second call runs."""
    result = Runner.run_streamed(DESK, "Book the hotel and the train.", session=session())

    async def read() -> None:
        async for _ in result.stream_events():
            pass

    reading = asyncio.create_task(read())
    await seen("book_train")
    await asyncio.sleep(0.5)  # the other call has finished
    result.cancel()
    await reading


async def go_on() -> None:
    """Continue the conversation in another process."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(cancel, go_on)

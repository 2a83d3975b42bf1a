"""The user stops an answer while one call has finished and one runs.

Follows https://learn.microsoft.com/en-us/agent-framework/agents/conversations/storage: the history is stored after each call of the
model, and the program closes the calls that have no result. Without this, the next request is invalid; if the history is stored after
the run, or if `ResponsesHostServer` cancels the response, the finished result is lost too.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from common import agent, closed, run
from stage import GO_ON, book_hotel, book_train, main, seen

DESK = agent(book_hotel, book_train, each_call=True)


async def cancel() -> None:
    """Start a run, and cancel its task while the second call runs."""
    task = asyncio.create_task(run(DESK, "Book the hotel and the train."))
    await seen("book_train")
    await asyncio.sleep(0.5)  # the other call has finished
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def go_on() -> None:
    """Continue the conversation in another process."""
    await run(DESK, *await closed(), GO_ON)


if __name__ == "__main__":
    main(cancel, go_on)

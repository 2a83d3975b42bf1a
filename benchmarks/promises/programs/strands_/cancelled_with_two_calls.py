"""The user stops an answer while one call has finished and one runs.

Follows https://strandsagents.com/docs/user-guide/sdk/agents/agent-loop/ ("Cancellation"): a tool that has started stops only if it
watches the signal itself. The words of its result are the tool's.
"""

from __future__ import annotations

import asyncio

from common import agent, stoppable
from stage import GO_ON, book_hotel, book_train, main, seen


async def cancel() -> None:
    """Start a run, and cancel it while the second call runs."""
    desk = agent(book_hotel, stoppable(book_train))
    running = asyncio.create_task(desk.invoke_async("Book the hotel and the train."))
    await seen("book_train")
    await asyncio.sleep(0.5)  # the other call has finished
    desk.cancel()
    print((await running).stop_reason)


async def go_on() -> None:
    """Continue the conversation in another process."""
    await agent(book_hotel, stoppable(book_train)).invoke_async(GO_ON)


if __name__ == "__main__":
    main(cancel, go_on)

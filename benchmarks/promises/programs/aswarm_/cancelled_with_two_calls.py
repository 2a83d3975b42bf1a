"""The user stops an answer while one call has finished and one runs. Follows docs/guides/conversations.md."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from common import agent, new_swarm, store
from stage import GO_ON, book_hotel, book_train, main, seen

DESK = agent(book_hotel, book_train)


async def cancel() -> None:
    """Start a run, and cancel its task while the second call runs."""
    async with new_swarm() as swarm, store() as chats:
        chat = chats.conversation("ann", swarm, agent=DESK)
        task = asyncio.create_task(chat.run("Book the hotel and the train."))
        await seen("book_train")
        await asyncio.sleep(0.5)  # the other call has finished
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def go_on() -> None:
    """Continue the conversation in another process."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run(GO_ON)


if __name__ == "__main__":
    main(cancel, go_on)

"""The connection to the model breaks inside the arguments of a call. Follows docs/guides/conversations.md."""

from __future__ import annotations

from common import agent, new_swarm, store
from stage import GO_ON, book_hotel, main

from aswarm import RunError

DESK = agent(book_hotel)


async def stream() -> None:
    """Read the events until the stream breaks."""
    async with new_swarm() as swarm, store() as chats:
        try:
            async with chats.conversation("ann", swarm, agent=DESK).stream("Book the hotel.") as run:
                async for _ in run:
                    pass
        except RunError as error:
            print(f"{type(error).__name__}: {error}")


async def go_on() -> None:
    """Continue the conversation in another process."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run(GO_ON)


if __name__ == "__main__":
    main(stream, go_on)

"""The reader of a stream leaves in the middle of the text. Follows docs/guides/stopping-and-resuming.md."""

from __future__ import annotations

from common import agent, new_swarm, store
from stage import GO_ON, look_up, main, read

from aswarm.events import TextDelta

DESK = agent(look_up)


async def leave() -> None:
    """Read three pieces of the text."""
    pieces = 0
    async with (
        new_swarm() as swarm,
        store() as chats,
        chats.conversation("ann", swarm, agent=DESK).stream("Where is order 7?") as run,
    ):
        async for event in run:
            if isinstance(event, TextDelta):
                read(event.text)
                pieces += 1
            if pieces == 3:
                break


async def go_on() -> None:
    """Continue the conversation in another process."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run(GO_ON)


if __name__ == "__main__":
    main(leave, go_on)

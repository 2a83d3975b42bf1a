"""The process is killed while a tool runs. Follows docs/guides/conversations.md ("What is stored, and when")."""

from __future__ import annotations

from common import agent, new_swarm, store
from stage import GO_ON, book_train, look_up, main

DESK = agent(look_up, book_train)


async def start() -> None:
    """Run until the kill."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run("Look up order 7, and book the train.")


async def go_on() -> None:
    """Continue the conversation in another process."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run(GO_ON)


if __name__ == "__main__":
    main(start, go_on)

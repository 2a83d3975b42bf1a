"""Two processes get the same approval, and a third gets it later. Follows docs/guides/conversations.md ("Load and resume")."""

from __future__ import annotations

from common import agent, approved, new_swarm, store
from stage import GO_ON, both_ready, main, refund, refused

from aswarm import ConfigurationError
from aswarm.conversations import Conflict

DESK = agent(approved(refund))


async def ask() -> None:
    """Run until the call waits."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run("Refund order 7.")


async def approve() -> None:
    """Approve the call at the same time as the other process."""
    async with new_swarm() as swarm, store() as chats:
        chat = chats.conversation("ann", swarm, agent=DESK)
        assert (await chat.load()).waiting
        await both_ready()
        try:
            await chat.resume({"call_refund": True})
        except (Conflict, ConfigurationError) as error:
            refused(error)


async def approve_again() -> None:
    """Approve the call after both."""
    async with new_swarm() as swarm, store() as chats:
        try:
            await chats.conversation("ann", swarm, agent=DESK).resume({"call_refund": True})
        except ConfigurationError as error:
            refused(error)


async def go_on() -> None:
    """Continue the conversation."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run(GO_ON)


if __name__ == "__main__":
    main(ask, approve, approve_again, go_on)

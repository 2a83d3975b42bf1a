"""The approved action has run, then the model fails. Follows docs/guides/conversations.md ("Load and resume")."""

from __future__ import annotations

from common import agent, approved, new_swarm, store
from stage import GO_ON, main, refund

from aswarm import CompletionError

DESK = agent(approved(refund))


async def ask() -> None:
    """Run until the call waits."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run("Refund order 7.")


async def approve() -> None:
    """Approve the call. The model then fails."""
    async with new_swarm() as swarm, store() as chats:
        try:
            await chats.conversation("ann", swarm, agent=DESK).resume({"call_refund": True})
        except CompletionError as error:
            print(f"{type(error).__name__}: {error}")


async def recover() -> None:
    """Ask the model again in another process."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).resume()


async def go_on() -> None:
    """Continue the conversation."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run(GO_ON)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

"""The process is killed after an approved action, before its result is stored. Follows docs/guides/conversations.md."""

from __future__ import annotations

from common import agent, approved, new_swarm, store
from stage import GO_ON, main, refund

DESK = agent(approved(refund))


async def ask() -> None:
    """Run until the call waits."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run("Refund order 7.")


async def approve() -> None:
    """Approve the call. The process is killed when the money has moved."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).resume({"call_refund": True})


async def recover() -> None:
    """Continue the interrupted run in another process."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).resume()


async def go_on() -> None:
    """Continue the conversation."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run(GO_ON)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

"""Two calls wait, and the second is approved first. Follows docs/guides/approvals.md."""

from __future__ import annotations

from common import agent, approved, new_swarm, store
from stage import GO_ON, main, refund

DESK = agent(approved(refund))


async def ask() -> None:
    """Run until both calls wait."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run("Refund the orders 7 and 8.")


async def approve_second() -> None:
    """Approve the second call."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).resume({"call_second": True})


async def approve_first() -> None:
    """Approve the first call."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).resume({"call_refund": True})


async def go_on() -> None:
    """Continue the conversation."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run(GO_ON)


if __name__ == "__main__":
    main(ask, approve_second, approve_first, go_on)

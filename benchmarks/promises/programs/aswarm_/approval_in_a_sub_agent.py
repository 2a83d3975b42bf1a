"""A call of a sub-agent waits. Follows docs/guides/multi-agent.md (agents as tools) and docs/guides/approvals.md."""

from __future__ import annotations

from common import agent, approved, new_swarm, store
from stage import GO_ON, look_up, main, refund

from aswarm import Agent, agent_tool

CASHIER = Agent(
    name="Cashier", model="gpt-5", instructions="You are the cashier.", functions=[look_up, approved(refund)]
)
DESK = agent(agent_tool(CASHIER, name="cashier"))


async def ask() -> None:
    """Run until the call of the sub-agent waits."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run("Refund order 7.")


async def approve() -> None:
    """Approve in another process."""
    async with new_swarm() as swarm, store() as chats:
        chat = chats.conversation("ann", swarm, agent=DESK)
        waiting = (await chat.load()).waiting
        print(waiting)
        await chat.resume({call.id: True for call in waiting})


async def go_on() -> None:
    """Continue the conversation."""
    async with new_swarm() as swarm, store() as chats:
        await chats.conversation("ann", swarm, agent=DESK).run(GO_ON)


if __name__ == "__main__":
    main(ask, approve, go_on)

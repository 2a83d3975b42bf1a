"""A call of a sub-agent waits.

Follows https://openai.github.io/openai-agents-python/human_in_the_loop/ (`Agent.as_tool()`) with a session.
"""

from __future__ import annotations

from agents import Runner
from common import agent, load, save, session, tool
from stage import GO_ON, look_up, main, refund

CASHIER = agent(tool(look_up), tool(refund, needs_approval=True), name="Cashier", instructions="You are the cashier.")
DESK = agent(CASHIER.as_tool(tool_name="cashier", tool_description="Refunds orders."))


async def ask() -> None:
    """Run until the call of the sub-agent waits, and save the state."""
    save((await Runner.run(DESK, "Refund order 7.", session=session())).to_state())


async def approve() -> None:
    """Approve in another process."""
    state = await load(DESK)
    for interruption in state.get_interruptions():
        state.approve(interruption)
    await Runner.run(DESK, state, session=session())


async def go_on() -> None:
    """Continue the conversation."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(ask, approve, go_on)

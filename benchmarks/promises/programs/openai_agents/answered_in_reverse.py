"""Two calls wait, and the second is approved first.

Follows https://openai.github.io/openai-agents-python/human_in_the_loop/ ("You do not need to resolve every pending approval").
"""

from __future__ import annotations

from agents import Runner
from common import agent, load, save, session, tool
from stage import GO_ON, main, refund

DESK = agent(tool(refund, needs_approval=True))


async def ask() -> None:
    """Run until both calls wait, and save the state."""
    save((await Runner.run(DESK, "Refund the orders 7 and 8.", session=session())).to_state())


async def approve_second() -> None:
    """Approve the second call."""
    await _approve("call_second")


async def approve_first() -> None:
    """Approve the first call."""
    await _approve("call_refund")


async def _approve(call_id: str) -> None:
    state = await load(DESK)
    for interruption in state.get_interruptions():
        if interruption.raw_item.call_id == call_id:
            state.approve(interruption)
    save((await Runner.run(DESK, state, session=session())).to_state())


async def go_on() -> None:
    """Continue the conversation."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(ask, approve_second, approve_first, go_on)

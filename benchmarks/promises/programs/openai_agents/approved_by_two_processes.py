"""Two processes get the same approval, and a third gets it later.

Follows https://openai.github.io/openai-agents-python/human_in_the_loop/ with a session. The page names no lock.
"""

from __future__ import annotations

from agents import Runner, UserError
from common import agent, load, save, session, tool
from stage import GO_ON, both_ready, main, refund, refused

DESK = agent(tool(refund, needs_approval=True))


async def ask() -> None:
    """Run until the call waits, and save the state."""
    save((await Runner.run(DESK, "Refund order 7.", session=session())).to_state())


async def approve() -> None:
    """Approve the call at the same time as the other process."""
    state = await load(DESK)
    await both_ready()
    await _approve(state)


async def approve_again() -> None:
    """Approve the call after both."""
    await _approve(await load(DESK))


async def _approve(state: object) -> None:
    for interruption in state.get_interruptions():
        state.approve(interruption)
    try:
        save((await Runner.run(DESK, state, session=session())).to_state())
    except UserError as error:
        refused(error)


async def go_on() -> None:
    """Continue the conversation."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(ask, approve, approve_again, go_on)

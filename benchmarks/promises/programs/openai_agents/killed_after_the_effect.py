"""The process is killed after an approved action, before its result is stored.

Follows https://openai.github.io/openai-agents-python/human_in_the_loop/ with a session. The page has no step for a crash. If the
program resumes the saved state, the order is refunded twice. So this program only continues the session: the order is refunded once.
"""

from __future__ import annotations

from agents import Runner
from common import agent, load, save, session, tool
from stage import GO_ON, main, refund

DESK = agent(tool(refund, needs_approval=True))


async def ask() -> None:
    """Run until the call waits, and save the state."""
    save((await Runner.run(DESK, "Refund order 7.", session=session())).to_state())


async def approve() -> None:
    """Approve the call, save the decision, and resume. The process is killed when the money has moved."""
    state = await load(DESK)
    for interruption in state.get_interruptions():
        state.approve(interruption)
    save(state)
    await Runner.run(DESK, state, session=session())


async def recover() -> None:
    """Do not resume the saved state: that would run the action again."""


async def go_on() -> None:
    """Continue the conversation."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

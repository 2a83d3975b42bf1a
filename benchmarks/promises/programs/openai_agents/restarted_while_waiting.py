"""The service is killed and restarted while a call waits.

Follows https://openai.github.io/openai-agents-python/human_in_the_loop/ ("Long-running approvals"). There is no service: each
step is a process of its own, and the state is in a file.
"""

from __future__ import annotations

import asyncio

from agents import Runner
from common import agent, load, save, session, tool
from stage import GO_ON, effect, main, refund

DESK = agent(tool(refund, needs_approval=True))


async def serve() -> None:
    """Wait: this framework has no service."""
    effect("ready")
    await asyncio.sleep(600)


async def ask() -> None:
    """Run until the call waits, and save the state."""
    save((await Runner.run(DESK, "Refund order 7.", session=session())).to_state())


async def approve() -> None:
    """Load the state in another process, and approve."""
    state = await load(DESK)
    for interruption in state.get_interruptions():
        state.approve(interruption)
    await Runner.run(DESK, state, session=session())


async def go_on() -> None:
    """Continue the conversation."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(serve, ask, approve, go_on)

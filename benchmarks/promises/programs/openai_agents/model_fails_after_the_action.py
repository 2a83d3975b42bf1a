"""The approved action has run, then the model fails.

Follows https://openai.github.io/openai-agents-python/human_in_the_loop/ with a session. The state knows what has run, so the program
saves it after the error.
"""

from __future__ import annotations

import openai
from agents import Runner
from common import agent, load, save, session, tool
from stage import GO_ON, main, refund

DESK = agent(tool(refund, needs_approval=True))


async def ask() -> None:
    """Run until the call waits, and save the state."""
    save((await Runner.run(DESK, "Refund order 7.", session=session())).to_state())


async def approve() -> None:
    """Approve the call. The model then fails."""
    state = await load(DESK)
    for interruption in state.get_interruptions():
        state.approve(interruption)
    try:
        await Runner.run(DESK, state, session=session())
    except openai.OpenAIError as error:
        print(f"{type(error).__name__}: {error}")
    save(state)


async def recover() -> None:
    """Resume the state in another process."""
    await Runner.run(DESK, await load(DESK), session=session())


async def go_on() -> None:
    """Continue the conversation."""
    await Runner.run(DESK, GO_ON, session=session())


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

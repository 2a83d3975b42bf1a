"""The approved action has run, then the model fails.

Follows https://strandsagents.com/docs/user-guide/sdk/agents/interventions/human-in-the-loop/ with a session. An agent that is called
without a prompt continues its history.
"""

from __future__ import annotations

from common import agent, answers, remember
from stage import GO_ON, main, refund
from strands.types.exceptions import EventLoopException


async def ask() -> None:
    """Run until the call waits."""
    remember(await agent(refund).invoke_async("Refund order 7."))


async def approve() -> None:
    """Approve the call. The model then fails."""
    try:
        await agent(refund).invoke_async(answers())
    except EventLoopException as error:
        print(f"{type(error).__name__}: {error}")


async def recover() -> None:
    """Ask the model again in another process."""
    await agent(refund).invoke_async()


async def go_on() -> None:
    """Continue the conversation."""
    await agent(refund).invoke_async(GO_ON)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

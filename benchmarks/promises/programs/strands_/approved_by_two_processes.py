"""Two processes get the same approval, and a third gets it later.

Follows https://strandsagents.com/docs/user-guide/sdk/agents/interventions/human-in-the-loop/ with a session. Neither this page nor the
page of the session managers names a lock.
"""

from __future__ import annotations

from common import agent, answers, remember
from stage import GO_ON, both_ready, main, refund, refused


async def ask() -> None:
    """Run until the call waits."""
    remember(await agent(refund).invoke_async("Refund order 7."))


async def approve() -> None:
    """Approve the call at the same time as the other process."""
    desk = agent(refund)
    await both_ready()
    try:
        await desk.invoke_async(answers())
    except ValueError as error:
        refused(error)


async def approve_again() -> None:
    """Approve the call after both."""
    try:
        await agent(refund).invoke_async(answers())
    except ValueError as error:
        refused(error)


async def go_on() -> None:
    """Continue the conversation."""
    await agent(refund).invoke_async(GO_ON)


if __name__ == "__main__":
    main(ask, approve, approve_again, go_on)

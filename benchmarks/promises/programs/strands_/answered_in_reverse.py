"""Two calls wait, and the second is approved first.

Follows https://strandsagents.com/docs/user-guide/sdk/agents/interventions/human-in-the-loop/ with a session.
"""

from __future__ import annotations

from common import agent, answers, remember
from stage import GO_ON, main, refund


async def ask() -> None:
    """Run until both calls wait."""
    remember(await agent(refund).invoke_async("Refund the orders 7 and 8."))


async def approve_second() -> None:
    """Approve the second call."""
    remember(await agent(refund).invoke_async(answers(about='"order": 8')))


async def approve_first() -> None:
    """Approve the first call."""
    await agent(refund).invoke_async(answers(about='"order": 7'))


async def go_on() -> None:
    """Continue the conversation."""
    await agent(refund).invoke_async(GO_ON)


if __name__ == "__main__":
    main(ask, approve_second, approve_first, go_on)

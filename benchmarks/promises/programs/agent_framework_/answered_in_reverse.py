"""Two calls wait, and the second is approved first.

Follows https://learn.microsoft.com/en-us/agent-framework/agents/tools/tool-approval with a session, which keeps the first answer.
"""

from __future__ import annotations

from common import agent, approve_call, approved, pause, run
from stage import GO_ON, main, refund

DESK = agent(approved(refund))


async def ask() -> None:
    """Run until both calls wait."""
    await pause(DESK, "Refund the orders 7 and 8.")


async def approve_second() -> None:
    """Approve the second call."""
    await approve_call(DESK, "call_second")


async def approve_first() -> None:
    """Approve the first call."""
    await approve_call(DESK, "call_refund")


async def go_on() -> None:
    """Continue the conversation."""
    await run(DESK, GO_ON)


if __name__ == "__main__":
    main(ask, approve_second, approve_first, go_on)

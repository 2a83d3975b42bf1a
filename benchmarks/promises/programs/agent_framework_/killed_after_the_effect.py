"""The process is killed after an approved action, before its result is stored.

Follows https://learn.microsoft.com/en-us/agent-framework/agents/tools/tool-approval with a session. The page has no step for a crash. If
the program sends the approval again, the order is refunded twice. So this program only continues the conversation.
"""

from __future__ import annotations

from common import agent, approve_call, approved, pause, run
from stage import GO_ON, main, refund

DESK = agent(approved(refund))


async def ask() -> None:
    """Run until the call waits."""
    await pause(DESK, "Refund order 7.")


async def approve() -> None:
    """Approve the call. The process is killed when the money has moved."""
    await approve_call(DESK, "call_refund")


async def recover() -> None:
    """Do not send the approval again: that would run the action again."""


async def go_on() -> None:
    """Continue the conversation."""
    await run(DESK, GO_ON)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

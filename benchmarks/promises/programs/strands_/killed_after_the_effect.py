"""The process is killed after an approved action, before its result is stored.

Follows https://strandsagents.com/docs/user-guide/sdk/agents/interventions/human-in-the-loop/ with a session. The page has no step for a
crash: the stored session still says that the call waits, and takes no other message. If the person approves again, the order is
refunded twice. So this program denies: the order is refunded once. `checkpointing=True`
(https://strandsagents.com/docs/api/python/strands.experimental.checkpoint.checkpoint/) stores no start of a call either.
"""

from __future__ import annotations

from common import agent, answers, remember
from stage import GO_ON, main, refund


async def ask() -> None:
    """Run until the call waits."""
    remember(await agent(refund).invoke_async("Refund order 7."))


async def approve() -> None:
    """Approve the call. The process is killed when the money has moved."""
    await agent(refund).invoke_async(answers())


async def recover() -> None:
    """Deny the call in another process, because it may have run."""
    await agent(refund).invoke_async(answers("no, it may have run before"))


async def go_on() -> None:
    """Continue the conversation."""
    await agent(refund).invoke_async(GO_ON)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

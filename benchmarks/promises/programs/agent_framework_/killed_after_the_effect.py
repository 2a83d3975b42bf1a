"""The process is killed after an approved action, before its result is stored.

Follows https://learn.microsoft.com/en-us/agent-framework/agents/tools/tool-approval with a session. The page has no step for a crash: if
the program sends the approval again, the order is refunded twice. So the note that an approval was sent, and the result of the call, are
work of the program (see `closed`). Without this, the next request is invalid, or the model does not read that the call was started.
"""

from __future__ import annotations

from common import agent, approve_call, approved, closed, pause, run
from stage import FOLDER, GO_ON, main, refund

DESK = agent(approved(refund), each_call=True)
SENT = FOLDER / "sent"


async def ask() -> None:
    """Run until the call waits."""
    await pause(DESK, "Refund order 7.")


async def approve() -> None:
    """Approve the call. The process is killed when the money has moved."""
    SENT.touch()
    await approve_call(DESK, "call_refund")


async def recover() -> None:
    """Close the call: it may have run."""
    if SENT.exists():
        await run(DESK, *await closed())


async def go_on() -> None:
    """Continue the conversation."""
    await run(DESK, GO_ON)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

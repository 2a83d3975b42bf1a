"""The process is killed after an approved action, before its result is stored.

Follows https://docs.langchain.com/oss/python/concepts/human-in-the-loop (per-call mode),
https://docs.langchain.com/oss/python/langgraph/durable-execution (a resume with `None`) and
https://docs.langchain.com/oss/python/langgraph/errors/INVALID_CHAT_HISTORY. After the resume, the call waits again, as if nothing had
happened. The program must know that it was approved, must not approve it a second time, and writes the result of the call itself. An
answer without the id of its interrupt (`Command(resume={"type": "approve"})`) is stored, and the resume with `None` refunds again.
"""

from __future__ import annotations

from common import THREAD, approve_call, go_on_with, say, stored
from stage import main, refund


async def ask() -> None:
    """Run until the call waits."""
    async with stored(refund, approve="refund") as desk:
        await say(desk, "Refund order 7.")


async def approve() -> None:
    """Approve the call. The process is killed when the money has moved."""
    async with stored(refund, approve="refund") as desk:
        await approve_call(desk, "call_refund")


async def recover() -> None:
    """Resume the thread in another process. The call waits again."""
    async with stored(refund, approve="refund") as desk:
        await desk.ainvoke(None, THREAD, durability="sync")


async def go_on() -> None:
    """Continue the conversation."""
    async with stored(refund, approve="refund") as desk:
        await go_on_with(desk)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

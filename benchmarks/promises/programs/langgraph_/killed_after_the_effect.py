"""The process is killed after an approved action, before its result is stored.

Follows https://docs.langchain.com/oss/python/langchain/human-in-the-loop and
https://docs.langchain.com/oss/python/langgraph/errors/INVALID_CHAT_HISTORY. If the program resumes with `None`, as in
https://docs.langchain.com/oss/python/langgraph/durable-execution, the order is refunded twice. So this program only continues the
conversation: the order is refunded once.
"""

from __future__ import annotations

from common import approve_call, go_on_with, say, stored
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
    """Do not resume the thread: that would run the action again."""


async def go_on() -> None:
    """Continue the conversation."""
    async with stored(refund, approve="refund") as desk:
        await go_on_with(desk)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

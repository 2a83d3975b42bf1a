"""Two calls wait, and the second is approved first.

Follows https://docs.langchain.com/oss/python/concepts/human-in-the-loop (per-call mode) and
https://docs.langchain.com/oss/python/langgraph/interrupts#handling-multiple-interrupts.
"""

from __future__ import annotations

from common import approve_call, go_on_with, say, stored
from stage import main, refund


async def ask() -> None:
    """Run until both calls wait."""
    async with stored(refund, approve="refund") as desk:
        await say(desk, "Refund the orders 7 and 8.")


async def approve_second() -> None:
    """Approve the second call."""
    async with stored(refund, approve="refund") as desk:
        await approve_call(desk, "call_second")


async def approve_first() -> None:
    """Approve the first call."""
    async with stored(refund, approve="refund") as desk:
        await approve_call(desk, "call_refund")


async def go_on() -> None:
    """Continue the conversation."""
    async with stored(refund, approve="refund") as desk:
        await go_on_with(desk)


if __name__ == "__main__":
    main(ask, approve_second, approve_first, go_on)

"""The service is killed and restarted while a call waits.

Follows https://docs.langchain.com/oss/python/langgraph/checkpointers: each step is a process of its own, and the checkpoints are in
SQLite. The local Agent Server (`langgraph dev`) keeps its state in memory, and writes it to a file every ten seconds.
"""

from __future__ import annotations

import asyncio

from common import approve_call, go_on_with, say, stored
from stage import effect, main, refund


async def serve() -> None:
    """Wait: this program needs no service."""
    effect("ready")
    await asyncio.sleep(60)


async def ask() -> None:
    """Run until the call waits."""
    async with stored(refund, approve="refund") as desk:
        await say(desk, "Refund order 7.")


async def approve() -> None:
    """Approve the call in another process."""
    async with stored(refund, approve="refund") as desk:
        await approve_call(desk, "call_refund")


async def go_on() -> None:
    """Continue the conversation."""
    async with stored(refund, approve="refund") as desk:
        await go_on_with(desk)


if __name__ == "__main__":
    main(serve, ask, approve, go_on)

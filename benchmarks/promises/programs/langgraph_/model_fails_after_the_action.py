"""The approved action has run, then the model fails.

Follows https://docs.langchain.com/oss/python/langgraph/durable-execution: the program resumes the thread with `None`.
"""

from __future__ import annotations

import openai
from common import THREAD, approve_call, go_on_with, say, stored
from stage import main, refund


async def ask() -> None:
    """Run until the call waits."""
    async with stored(refund, approve="refund") as desk:
        await say(desk, "Refund order 7.")


async def approve() -> None:
    """Approve the call. The model then fails."""
    async with stored(refund, approve="refund") as desk:
        try:
            await approve_call(desk, "call_refund")
        except openai.OpenAIError as error:
            print(f"{type(error).__name__}: {error}")


async def recover() -> None:
    """Resume the thread in another process."""
    async with stored(refund, approve="refund") as desk:
        await desk.ainvoke(None, THREAD, durability="sync")


async def go_on() -> None:
    """Continue the conversation."""
    async with stored(refund, approve="refund") as desk:
        await go_on_with(desk)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

"""Two calls wait, and the second is approved first. Follows https://ai.pydantic.dev/deferred-tools/."""

from __future__ import annotations

from common import agent, approve_all, go_on_with, pause
from pydantic_ai import Tool, UserError
from stage import main, refund, refused

DESK = agent(Tool(refund, requires_approval=True))


async def ask() -> None:
    """Run until both calls wait."""
    await pause(DESK, "Refund the orders 7 and 8.")


async def approve_second() -> None:
    """Approve the second call alone."""
    try:
        await approve_all(DESK, "call_second")
    except UserError as error:
        refused(error)


async def approve_first() -> None:
    """Approve the first call, and the second again."""
    await approve_all(DESK, "call_refund", "call_second")


async def go_on() -> None:
    """Continue the conversation."""
    await go_on_with(DESK)


if __name__ == "__main__":
    main(ask, approve_second, approve_first, go_on)

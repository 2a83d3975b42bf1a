"""The service is killed and restarted while a call waits.

Follows https://ai.pydantic.dev/deferred-tools/. There is no service that keeps runs: each step is a process of its own.
"""

from __future__ import annotations

import asyncio

from common import agent, approve_calls, go_on_with, pause
from pydantic_ai import Tool
from stage import effect, main, refund

DESK = agent(Tool(refund, requires_approval=True))


async def serve() -> None:
    """Wait: this framework has no service."""
    effect("ready")
    await asyncio.Event().wait()


async def ask() -> None:
    """Run until the call waits."""
    await pause(DESK, "Refund order 7.")


async def approve() -> None:
    """Approve the call in another process."""
    await approve_calls(DESK, "call_refund")


async def go_on() -> None:
    """Continue the conversation."""
    await go_on_with(DESK)


if __name__ == "__main__":
    main(serve, ask, approve, go_on)

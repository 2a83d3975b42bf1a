"""The approved action has run, then the model fails.

Follows https://ai.pydantic.dev/deferred-tools/, and the page of `StepPersistence` of the harness: a failing run saves its messages.
"""

from __future__ import annotations

from common import CHAT, agent, approve_calls, go_on_with, history, pause
from pydantic_ai import Tool
from pydantic_ai.exceptions import AgentRunError
from stage import main, refund

DESK = agent(Tool(refund, requires_approval=True))


async def ask() -> None:
    """Run until the call waits."""
    await pause(DESK, "Refund order 7.")


async def approve() -> None:
    """Approve the call. The model then fails."""
    try:
        await approve_calls(DESK, "call_refund")
    except AgentRunError as error:
        print(f"{type(error).__name__}: {error}")


async def recover() -> None:
    """Continue from the saved messages in another process."""
    await DESK.run(message_history=await history(), conversation_id=CHAT)


async def go_on() -> None:
    """Continue the conversation."""
    await go_on_with(DESK)


if __name__ == "__main__":
    main(ask, approve, recover, go_on)

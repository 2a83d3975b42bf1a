"""A call of a sub-agent waits.

Follows https://docs.langchain.com/oss/python/langchain/multi-agent/subagents and
https://docs.langchain.com/oss/python/migrate/langgraph-supervisor (interrupt propagation): a tool that calls the second agent, which
has no checkpointer of its own and uses the first agent's.
"""

from __future__ import annotations

from common import agent, approve_call, go_on_with, said, say, stored
from stage import look_up, main, refund

CASHIER = agent(look_up, refund, approve="refund", system_prompt="You are the cashier.")


async def cashier(request: str) -> str:
    """Refund orders."""
    result = await CASHIER.ainvoke(said(request))
    return result["messages"][-1].text


async def ask() -> None:
    """Run until the call of the sub-agent waits."""
    async with stored(cashier) as desk:
        await say(desk, "Refund order 7.")


async def approve() -> None:
    """Approve in another process."""
    async with stored(cashier) as desk:
        await approve_call(desk, "call_refund")


async def go_on() -> None:
    """Continue the conversation."""
    async with stored(cashier) as desk:
        await go_on_with(desk)


if __name__ == "__main__":
    main(ask, approve, go_on)

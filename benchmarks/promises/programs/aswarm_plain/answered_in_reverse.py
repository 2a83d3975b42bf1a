"""As `aswarm_/answered_in_reverse.py`, but with a plain function, whose calls run one after the other.

Follows docs/guides/approvals.md: the decision on the later call alone is refused, so the second clerk sends both.
"""

from __future__ import annotations

from openai import AsyncOpenAI
from stage import FOLDER, GO_ON, URL, effect, main, refused

from aswarm import Agent, AsyncSwarm, ConfigurationError, tool
from aswarm.conversations import SQLiteStore


@tool(approve=True)
def refund(order: int) -> str:
    """Refund an order."""
    effect("refund", order=order)
    return f"refunded order {order}"


DESK = Agent(name="Desk", model="gpt-5", functions=[refund])


def new_swarm() -> AsyncSwarm:
    """Return a swarm whose model is the scripted server."""
    return AsyncSwarm(AsyncOpenAI(base_url=URL, api_key="none"))


async def _resume(decisions: dict[str, bool]) -> None:
    async with new_swarm() as swarm, SQLiteStore(str(FOLDER / "chats.sqlite")) as chats:
        await chats.conversation("ann", swarm, agent=DESK).resume(decisions)


async def _run(text: str) -> None:
    async with new_swarm() as swarm, SQLiteStore(str(FOLDER / "chats.sqlite")) as chats:
        await chats.conversation("ann", swarm, agent=DESK).run(text)


async def ask() -> None:
    """Run until both calls wait."""
    await _run("Refund the orders 7 and 8.")


async def approve_second() -> None:
    """Approve the second call: refused, and nothing has changed."""
    try:
        await _resume({"call_second": True})
    except ConfigurationError as error:
        refused(error)


async def approve_first() -> None:
    """Approve both calls."""
    await _resume({"call_refund": True, "call_second": True})


async def go_on() -> None:
    """Continue the conversation."""
    await _run(GO_ON)


if __name__ == "__main__":
    main(ask, approve_second, approve_first, go_on)

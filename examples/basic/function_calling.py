"""The model calls a function: its schema comes from the hints and the docstring, its arguments are checked."""

import asyncio
from typing import Literal

from aswarm import Agent, AsyncSwarm

STOCK = {("bell", "black"): 12, ("bell", "silver"): 0, ("saddle", "black"): 3}


async def count_stock(article: str, colour: Literal["black", "silver"]) -> int:
    """How many of an article are in the shop."""
    return STOCK.get((article, colour), 0)


clerk = Agent(name="Clerk", instructions="You work in a bicycle shop. Look into the stock.", functions=[count_stock])


async def main() -> None:
    """Ask, and show every message of the run: the call, its result, the model's answer."""
    async with AsyncSwarm() as swarm:
        response = await swarm.run(clerk, "Do you have black bells?")
    for message in response.messages:
        calls = [call["function"] for call in message.get("tool_calls") or []]
        print(f"{message['role']}: {calls or message['content']}")


asyncio.run(main())

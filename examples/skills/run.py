"""Asks for a quote, and prints the calls of the model."""

from __future__ import annotations

import asyncio

from agents import desk, shop

from aswarm import AsyncSwarm, ToolCallStarted

QUESTION = "What do a desk lamp, a floor lamp and a bulb cost together?"


async def main() -> None:
    """Ask, and print each call and the answer."""
    texts = [text for skill in shop.by_name.values() for text in (skill.instructions, *skill.files.values()) if text]
    print(f"In each request: {len(shop.instructions)} characters. Loaded only if needed: {sum(map(len, texts))}.")
    async with AsyncSwarm() as swarm, swarm.stream(desk, QUESTION, deltas=False) as run:
        async for event in run:
            if isinstance(event, ToolCallStarted):
                print(f"    {event.name} {event.arguments[:60]}")
    print(f"Desk: {run.response.text}")


if __name__ == "__main__":
    asyncio.run(main())

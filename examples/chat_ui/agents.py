"""A gardener who looks after plants. The call that cuts down a plant waits for the user."""

from __future__ import annotations

import asyncio
from typing import Any

from aswarm import Agent, tool

PLANTS = {"basil": "dry", "fig": "well", "rose": "full of aphids"}


async def look_at(plant: str) -> str:
    """How a plant is."""
    await asyncio.sleep(0.5)  # so that the page has time to show it
    return PLANTS.get(plant, "there is no such plant")


async def water(plant: str, context: dict[str, Any]) -> str:
    """Water a plant."""
    context.setdefault("watered", []).append(plant)
    return f"The {plant} has water now."


@tool(approve=True)
async def cut_down(plant: str) -> str:
    """Cut a plant down. The user is asked first."""
    return f"The {plant} is cut down."


gardener = Agent(
    name="Gardener",
    instructions="You look after the plants of the user. Look at a plant before you do something to it.",
    functions=[look_at, water, cut_down],
)

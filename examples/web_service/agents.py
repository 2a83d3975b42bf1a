"""The concierge of a hotel, with a quick function and a slow one."""

from __future__ import annotations

import asyncio
from typing import Literal

from aswarm import Agent, tool

HOURS = {"breakfast": "7:00 to 10:30", "pool": "6:00 to 22:00", "sauna": "15:00 to 21:00"}
TAXI_SECONDS = 5


@tool(thread=False)  # it never blocks, so it needs no worker thread
def opening_hours(place: Literal["breakfast", "pool", "sauna"]) -> str:
    """When a part of the house is open."""
    return HOURS[place]


async def order_taxi(destination: str) -> str:
    """Order a taxi to the front door. The taxi firm takes a moment to answer."""
    await asyncio.sleep(TAXI_SECONDS)
    return f"A taxi to {destination} comes in ten minutes."


concierge = Agent(
    name="Concierge",
    instructions="You are the concierge of the Hotel Linden. Look up the hours before you name them. When you do not know "
    "whether a taxi has been ordered, say so and ask before you order one: two taxis are as bad as none.",
    functions=[opening_hours, order_taxi],
)

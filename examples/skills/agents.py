"""The desk of a shop for lamps, with two skills. The code of a skill runs in the sandbox of code mode."""

from __future__ import annotations

from pathlib import Path

from aswarm import Agent
from aswarm.code import code_tool
from aswarm.skills import skills

CENTS = {"desk lamp": 4900, "floor lamp": 12900, "bulb": 900}


async def price(item: str) -> int:
    """Return the price of an item in cents."""
    return CENTS[item]


shop = skills(Path(__file__).with_name("skills"))
desk = shop.add_to(
    Agent(name="Desk", instructions="You work at the desk of a shop for lamps.", functions=[code_tool(price)])
)

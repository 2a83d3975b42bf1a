"""A support agent that compares orders with their deliveries, with plain tools and with code."""

from __future__ import annotations

import asyncio
from typing import TypedDict

from aswarm import Agent
from aswarm.code import code_tool


class Order(TypedDict):
    """An order: the number of paid items, and the price of each in cents."""

    id: int
    customer: str
    items: int
    price: int


class Delivery(TypedDict):
    """The delivery of an order. `items`: the number of items that arrived."""

    order: int
    items: int


ORDERS = {
    number: Order(id=number, customer=f"customer {number % 7}", items=number % 5 + 1, price=250 + 10 * number)
    for number in range(1, 41)
}
LOST = {4: 1, 17: 2, 33: 1}  # the items that did not arrive, by order


async def list_orders() -> list[int]:
    """List the numbers of this month's orders."""
    return [*ORDERS]


async def get_order(order: int) -> Order:
    """Get an order."""
    await asyncio.sleep(0.02)  # a database
    return ORDERS[order]


async def get_delivery(order: int) -> Delivery:
    """Get the delivery of an order."""
    await asyncio.sleep(0.02)
    return Delivery(order=order, items=ORDERS[order]["items"] - LOST.get(order, 0))


INSTRUCTIONS = "You work in the support of a shop. Use your functions, and never guess."
FUNCTIONS = [list_orders, get_order, get_delivery]
with_tools = Agent(name="With tools", instructions=INSTRUCTIONS, functions=FUNCTIONS)
with_code = Agent(name="With code", instructions=INSTRUCTIONS, functions=[code_tool(*FUNCTIONS)])

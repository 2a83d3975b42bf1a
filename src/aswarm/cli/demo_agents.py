"""The two agents of `aswarm demo`. They work with a real model too: `aswarm chat aswarm.cli.demo_agents:triage`.

The shop has two orders, which are in memory. Each process starts with new orders.
"""

from __future__ import annotations

from aswarm._values.agent import Agent

_prices = {4711: 39.90, 815: 5.00}
_refunded: set[int] = set()


async def look_up_order(order_id: int) -> str:
    """Look up an order by its number."""
    if order_id not in _prices:
        return f"There is no order {order_id}."
    refunded = ", refunded" if order_id in _refunded else ""
    return f"Order {order_id}: a lamp for {_prices[order_id]:.2f} EUR, delivered{refunded}."


async def refund_order(order_id: int, reason: str) -> str:
    """Give the customer the money for an order back. Look the order up first."""
    if order_id not in _prices or order_id in _refunded:
        return f"Order {order_id} cannot be refunded."
    _refunded.add(order_id)
    return f"Refunded {_prices[order_id]:.2f} EUR for order {order_id}."


def transfer_to_triage() -> Agent:
    """Hand the customer back when the question is not about a refund."""
    return triage


refunds = Agent(
    name="Refunds",
    instructions="You refund orders. Ask for the order number and the reason, then look the order up, then refund it.",
    functions=[look_up_order, refund_order, transfer_to_triage],
)
triage = Agent(
    name="Triage",
    instructions="You welcome the customers of a lamp shop. Hand those who want their money back to Refunds.",
    functions=[refunds],
)

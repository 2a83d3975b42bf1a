"""The cashier of a lamp shop. Some calls wait for a person: a large refund for an approval, a replacement for an answer."""

from __future__ import annotations

from typing import Any

from aswarm import Agent, Hold, current_call, tool

LIMIT = 100
COLOURS = ["white", "blue", "green"]


def over_limit(arguments: dict[str, Any], _: object) -> str | bool:
    """Return the reason why a refund waits, for the person who decides. Return False if it does not wait."""
    return f"more than {LIMIT} euros" if arguments["amount"] > LIMIT else False


@tool(approve=over_limit, thread=False)
def refund(order: int, amount: int) -> str:
    """Refund an order, in euros."""
    return f"{amount} euros for order {order} are on their way."


@tool(may_wait=True)
async def replace_lamp(order: int) -> str:
    """Send a new lamp for an order."""
    if not current_call().is_approved:  # it has no effect yet: with the answer, it runs again from the start
        raise Hold("Which colour is in stock?", data={"colours": COLOURS})
    return f"A {current_call().answer} lamp is sent for order {order}."


cashier = Agent(
    name="Cashier",
    instructions="You are the cashier of a lamp shop. Refund an order, or replace its lamp, when a customer asks for it. Say "
    "what has been done, with the amount that was really refunded.",
    functions=[refund, replace_lamp],
)

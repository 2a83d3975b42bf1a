"""The three agents of a tea shop. Triage hands off to sales or refunds, and these two can hand back to triage.

Each handoff is a function. The model knows it only by its name and its docstring.
"""

from __future__ import annotations

from typing import Any

from aswarm import Agent, Result

TEAS = {"assam": 780, "darjeeling": 1120, "sencha": 940}  # euro cents for 100 g

# The shop's data about the customer; the model gets only the results of the functions.
CONTEXT: dict[str, Any] = {
    "customer": "Ada",
    "orders": {"4711": {"article": "teapot", "cents": 2490}, "4712": {"article": "sencha, 100 g", "cents": 940}},
    "refunded": [],
    "discount_percent": 0,
}


def euros(cents: int) -> str:
    """Return an amount for a customer."""
    return f"{cents / 100:.2f} EUR"


# --- sales ---


async def list_teas() -> dict[str, str]:
    """All teas, each with its price for 100 g."""
    return {tea: euros(cents) for tea, cents in TEAS.items()}


# --- refunds ---


async def look_up_order(context_variables: dict[str, Any], order_id: int) -> dict[str, str]:
    """What was ordered, for how much, and whether it has been refunded."""
    order = _order(context_variables, order_id)
    state = "refunded" if order_id in context_variables["refunded"] else "paid"
    return {"article": order["article"], "price": euros(order["cents"]), "state": state}


async def process_refund(context_variables: dict[str, Any], order_id: int, reason: str) -> Result:
    """Give the money for an order back. Only after the customer has said yes to it. `reason` in the customer's words."""
    order = _order(context_variables, order_id)
    refunded = context_variables["refunded"]
    if order_id in refunded:
        raise ValueError(f"order {order_id} has been refunded before")
    told = f"{euros(order['cents'])} for the {order['article']} are on their way back."
    return Result(value=told, context_variables={"refunded": [*refunded, order_id]})


async def grant_discount() -> Result:
    """Give the customer 10 % off the next order, once, instead of a refund."""
    return Result(value="10 % off the next order.", context_variables={"discount_percent": 10})


def _order(context_variables: dict[str, Any], order_id: int) -> dict[str, Any]:
    # The model gets the text of the exception, and can ask the customer again.
    order: dict[str, Any] | None = context_variables["orders"].get(str(order_id))
    if order is None:
        raise ValueError(f"{context_variables['customer']} has no order {order_id}")
    return order


# --- handoffs ---


async def transfer_to_sales() -> Agent:
    """For customers who want to know about teas or to buy some."""
    return sales_agent


async def transfer_to_refunds() -> Agent:
    """For customers who want money back, or who complain about something that they ordered."""
    return refunds_agent


async def transfer_back_to_triage() -> Agent:
    """For everything that is not yours to answer."""
    return triage_agent


triage_agent = Agent(
    name="Triage",
    instructions=(
        "You receive the customers of a tea shop. Find out what they want and hand them over to the agent for it. "
        "If it is not clear, ask one short question. Never answer for the other agents."
    ),
    functions=[transfer_to_sales, transfer_to_refunds],
)
sales_agent = Agent(
    name="Sales",
    instructions="You sell tea, and you love it. Recommend what fits in two sentences at most, with its price.",
    functions=[list_teas, transfer_back_to_triage],
)
refunds_agent = Agent(
    name="Refunds",
    instructions=(
        "You handle refunds. Ask for the order number and the reason if you do not have them, and look the order up. "
        "If the customer only finds the price too high, offer a discount first. "
        "Say what will be refunded and wait for a yes before you do it."
    ),
    functions=[look_up_order, process_refund, grant_discount, transfer_back_to_triage],
)

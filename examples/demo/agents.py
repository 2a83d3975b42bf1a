"""The demo's shop and its two agents.

Triage hands each customer off, and Refunds refunds the order. Each agent has one function, and must call it
(`tool_choice="required"`). The model of the demo is too small to choose a function, but it writes the arguments well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aswarm import Agent, Result

MODEL_SETTINGS = {"temperature": 0, "seed": 1, "max_tokens": 100}


@dataclass(frozen=True, slots=True)
class Refund:
    """A refund: its order, and the reason in the customer's words."""

    order_id: int
    reason: str


@dataclass(slots=True)
class Shop:
    """Orders by number, with their prices in euro cents, and the refunds so far."""

    orders: dict[int, int]
    refunds: list[Refund] = field(default_factory=list[Refund])

    def refund(self, order_id: int, reason: str) -> int:
        """Refund an order once, and return the cents. Raises ValueError for an unknown or already refunded order."""
        if order_id not in self.orders:
            raise ValueError(f"there is no order {order_id}")
        if any(refund.order_id == order_id for refund in self.refunds):
            raise ValueError(f"order {order_id} is already refunded")
        self.refunds.append(Refund(order_id, reason))
        return self.orders[order_id]


async def process_refund(order_id: int, reason: str, context_variables: dict[str, Any]) -> str:
    """Refund an order, for the reason that the customer gives."""
    cents = context_variables["shop"].refund(order_id, reason)
    return f"Refunded {cents / 100:.2f} EUR for order {order_id}."


def transfer_to_refunds() -> Result:
    """Pass the customer on to the refunds agent."""
    # Our own value in place of the agent's name: a small model would use the name as the reason of the refund.
    return Result(value="Done.", agent=refunds)


triage = Agent(
    name="Triage",
    model="smollm2",
    instructions="You greet customers and pass them on.",
    functions=[transfer_to_refunds],
    tool_choice="required",
    parallel_tool_calls=False,
    model_settings=MODEL_SETTINGS,
)
refunds = Agent(
    name="Refunds",
    model="smollm2",
    instructions="You handle refunds. "
    "Call process_refund with the order number and the reason from the customer's message.",
    functions=[process_refund],
    tool_choice="required",
    parallel_tool_calls=False,
    model_settings=MODEL_SETTINGS,
)

"""Step 3, a handoff: two agents, each with its own routine. A function that returns an agent hands over to it."""

from __future__ import annotations

from agents import REPAIRS, SALES
from customer import HANDOFF
from shop import execute_order, execute_refund, look_up_item
from terminal import ask, converse

from aswarm import Agent


def transfer_to_repairs() -> Agent:
    """Put the customer through to issues and repairs: something is broken, or not wanted any more."""
    return repairs


def transfer_to_sales() -> Agent:
    """Put the customer through to sales: they want to buy something."""
    return sales


sales = Agent(name="Sales Agent", instructions=SALES, functions=[look_up_item, execute_order, transfer_to_repairs])
repairs = Agent(
    name="Issues and Repairs Agent",
    instructions=REPAIRS,
    functions=[look_up_item, execute_refund, transfer_to_sales],
)

if __name__ == "__main__":
    converse(sales, HANDOFF, {"confirm": ask})

"""Step 2, functions: the same routine, but its last step now makes a real refund."""

from __future__ import annotations

from agents import REPAIRS
from customer import FUNCTIONS
from shop import execute_refund, look_up_item
from terminal import converse

from aswarm import Agent

agent = Agent(name="Issues and Repairs Agent", instructions=REPAIRS, functions=[look_up_item, execute_refund])

if __name__ == "__main__":
    converse(agent, FUNCTIONS)

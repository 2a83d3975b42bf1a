"""Step 1, a routine: instructions in plain words. The agent has no functions, and can only talk."""

from __future__ import annotations

from agents import REPAIRS
from customer import ROUTINE
from terminal import converse

from aswarm import Agent

agent = Agent(name="Issues and Repairs Agent", instructions=REPAIRS)

if __name__ == "__main__":
    converse(agent, ROUTINE)

"""Agents that hand off to each other in a ring."""

from __future__ import annotations

from aswarm import Agent


def ring(size: int, name: str = "A") -> Agent:
    """Return the first of `size` agents with one name; each has the next agent in its functions, and the last has the first."""
    agents = [Agent(name=name) for _ in range(size)]
    for agent, following in zip(agents, [*agents[1:], agents[0]], strict=True):
        agent.functions.append(following)
    return agents[0]

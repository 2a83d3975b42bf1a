"""Agents that hand over to each other in a ring."""

from __future__ import annotations

from aswarm import Agent


def ring(size: int, name: str = "A") -> Agent:
    """Agents of one name, each with the next among its functions, the last with the first."""
    agents = [Agent(name=name) for _ in range(size)]
    for agent, following in zip(agents, [*agents[1:], agents[0]], strict=True):
        agent.functions.append(following)
    return agents[0]

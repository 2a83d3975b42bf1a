"""Which agents a conversation may come to, by name, as far as can be seen without calling anything."""

from __future__ import annotations

from aswarm._agent import Agent
from aswarm._errors import ConfigurationError
from aswarm.graph import agent_graph


def agents_from(agent: Agent) -> dict[str, Agent]:
    """The agent and those it may hand off to, and so on, by name; of two with one name the nearer one."""
    found = {agent.name: agent}
    try:
        reached = [node.agent for node in agent_graph(agent).agents]
    except ConfigurationError:  # the run says so
        reached = []
    for known in reached:
        found.setdefault(known.name, known)
    return found

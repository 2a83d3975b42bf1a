"""Helpers to read a graph of agents: the handoffs, by name."""

from __future__ import annotations

from typing import Any

from aswarm import Agent
from aswarm.graph import Graph, agent_graph

Edge = tuple[str, str, str]


def certain(graph: Graph) -> list[Edge]:
    """Return (source, function, target) of every certain handoff."""
    return [edge for edge, is_certain in _edges(graph) if is_certain]


def maybe(graph: Graph) -> list[Edge]:
    """Return the possible handoffs in the same form; "?" is an agent that cannot be found."""
    return [edge for edge, is_certain in _edges(graph) if not is_certain]


def _edges(graph: Graph) -> list[tuple[Edge, bool]]:
    labels: dict[Any, str] = {None: "?", **{node.id: node.label for node in graph.agents}}
    return [((labels[h.source], h.function, labels[h.target]), h.certain) for h in graph.handoffs]


def handoffs_of(*functions: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the certain and the possible handoffs of an agent with these functions, as (function, target)."""
    graph = agent_graph(Agent(name="Start", functions=list(functions)))

    def own(edges: list[Edge]) -> list[tuple[str, str]]:
        return [(function, target) for source, function, target in edges if source == "Start"]

    return own(certain(graph)), own(maybe(graph))

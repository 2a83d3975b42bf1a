"""Graph of agents, their functions and their handoffs: as data, as Mermaid, as Graphviz's DOT.

    graph = agent_graph(triage)
    print(graph.mermaid())

No function is called. A handoff is certain if the code shows it: an agent in `functions`, or a function whose source returns
an agent (`return sales`, `return Result(agent=sales)`, also through local variables, conditions, partials and attributes). If
a function only refers to agents, as in `AGENTS[name]`, the handoff is dashed, as "maybe". If the return annotation of a
function is an agent and none is found, the handoff leads to "?". The notes of the graph list both kinds. Names are resolved
when the graph is made, so agents that are assigned later are missing. `Graph.concurrency_notes` lists the tools of an agent
that run together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from aswarm._values import public as _public
from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError

from ._concurrency import concurrency_notes
from ._drawing import AgentNode, Handoff, dot, mermaid
from ._find import reachable_views

__all__ = ["AgentNode", "Graph", "Handoff", "agent_graph"]


@dataclass(frozen=True, slots=True)
class Graph:
    """Agents that can be reached from one agent, which is the first, and the handoffs between them."""

    agents: tuple[AgentNode, ...]
    handoffs: tuple[Handoff, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Uncertain handoffs, with one sentence for each function. Empty if all handoffs are certain."""
        labels = {node.id: node.label for node in self.agents}
        targets: dict[tuple[str, str], list[str]] = {}
        for handoff in self.handoffs:
            if not handoff.certain:
                found = targets.setdefault((handoff.source, handoff.function), [])
                found += [labels[handoff.target]] if handoff.target else []
        return tuple(
            f"{function} of {labels[source]} may hand off to "
            f"{', '.join(found) or 'an agent that does not exist yet or cannot be found'}; only a call shows whether it does."
            for (source, function), found in targets.items()
        )

    @property
    def concurrency_notes(self) -> tuple[str, ...]:
        """Sentences, agent by agent: the tools that run together within a turn, and the reasons why others run alone."""
        return tuple(f"{node.label}: {note}" for node in self.agents for note in concurrency_notes(node.agent))

    def mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart, which GitHub and GitLab draw in Markdown (a `mermaid` fence)."""
        return mermaid(self.agents, self.handoffs, self.notes)

    def dot(self) -> str:
        """Return the graph in the language of Graphviz, for `dot -Tsvg`."""
        return dot(self.agents, self.handoffs, self.notes)


def agent_graph(agent: Agent) -> Graph:
    """Return the graph of all agents that can be reached from `agent`. Agents may hand off in circles.

    Raises ConfigurationError for a value that is not an Agent, and if an agent has functions that cannot be offered to a model.
    """
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
        raise ConfigurationError(f"agent must be an Agent, not {type(agent).__name__}")
    views = reachable_views(agent)
    ids = {id(view.agent): f"a{number}" for number, view in enumerate(views, start=1)}
    nodes: list[AgentNode] = []
    seen: Counter[str] = Counter()
    for view in views:
        name = view.agent.name
        seen[name] += 1
        label = name if seen[name] == 1 else f"{name} ({seen[name]})"
        nodes.append(AgentNode(ids[id(view.agent)], view.agent, label, view.functions))
    handoffs = [
        Handoff(ids[id(view.agent)], ids[id(found.target)] if found.target else None, found.function, found.certain)
        for view in views
        for found in view.handoffs
    ]
    return Graph(tuple(nodes), tuple(handoffs))


_public.publish(globals())

"""Which agent can hand off to which, and which functions each agent has: as data, as Mermaid, as Graphviz's DOT.

    graph = agent_graph(triage)
    print(graph.mermaid())

No function is called to find this out. A handoff is certain where the code shows it: an agent in `functions`, or a
function whose source returns an agent (`return sales`, `return Result(agent=sales)`, also through local variables,
conditions, partials and attributes). Where a function only refers to agents, as in `AGENTS[name]`, the handoff is drawn
dashed, as "maybe". Where a function is annotated to return an agent and none is found, the handoff leads to "?". The
graph lists both kinds in its notes. Names are looked up when the graph is made: agents that are assigned later are
missing from it. `Graph.concurrency_notes` says which tools of an agent run together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from aswarm import _public
from aswarm._agent import Agent

from ._concurrency import concurrency_notes
from ._drawing import AgentNode, Handoff, dot, mermaid
from ._find import AgentView, reachable_views

__all__ = ["AgentNode", "Graph", "Handoff", "agent_graph"]


@dataclass(frozen=True, slots=True)
class Graph:
    """The agents that can be reached from one agent, that one first, and the handoffs between them."""

    agents: tuple[AgentNode, ...]
    handoffs: tuple[Handoff, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not certain: one sentence for each such function. Empty where every handoff is certain."""
        unsure = [handoff for handoff in self.handoffs if not handoff.certain]
        functions = dict.fromkeys((handoff.source, handoff.function) for handoff in unsure)
        return tuple(self._note(*function, unsure) for function in functions)

    @property
    def concurrency_notes(self) -> tuple[str, ...]:
        """Which tools of each agent run together within a turn, and why others run alone: sentences, agent by agent."""
        return tuple(f"{node.label}: {note}" for node in self.agents for note in concurrency_notes(node.agent))

    def mermaid(self) -> str:
        """The graph as a Mermaid flowchart, which GitHub and GitLab draw in Markdown (a `mermaid` fence)."""
        return mermaid(self.agents, self.handoffs, self.notes)

    def dot(self) -> str:
        """The graph in the language of Graphviz, for `dot -Tsvg`."""
        return dot(self.agents, self.handoffs, self.notes)

    def _note(self, source: str, function: str, unsure: list[Handoff]) -> str:
        labels = {node.id: node.label for node in self.agents}
        targets = [handoff.target for handoff in unsure if (handoff.source, handoff.function) == (source, function)]
        known = ", ".join(labels[target] for target in targets if target)
        to = known or "an agent that does not exist yet or cannot be found"
        return f"{function} of {labels[source]} may hand off to {to}; only a call shows whether it does."


def agent_graph(agent: Agent) -> Graph:
    """The graph of all agents that can be reached from `agent`. Agents may hand off in circles.

    Raises ConfigurationError where an agent has functions that cannot be offered to a model.
    """
    views = reachable_views(agent)
    ids = {id(view.agent): f"a{number}" for number, view in enumerate(views, start=1)}
    nodes = [
        AgentNode(ids[id(view.agent)], view.agent, label, view.plain_functions)
        for view, label in zip(views, _labels(views), strict=True)
    ]
    handoffs = [
        Handoff(ids[id(view.agent)], ids[id(found.target)] if found.target else None, found.function, found.certain)
        for view in views
        for found in view.handoffs
    ]
    return Graph(tuple(nodes), tuple(handoffs))


def _labels(views: list[AgentView]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for view in views:
        name = view.agent.name
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"


_public.publish(globals())

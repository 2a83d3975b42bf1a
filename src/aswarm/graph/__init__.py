"""Who can hand off to whom, and which functions each agent has: as data, as Mermaid, as Graphviz's DOT.

    graph = agent_graph(triage)
    print(graph.mermaid())

Nobody's functions are called to find it. A handoff is certain where it can be seen: an agent in `functions`, or a
function whose source returns an agent (`return sales`, `return Result(agent=sales)`, through local variables,
conditions, partials, attributes). Where a function only names agents, as in `AGENTS[name]`, the handoff is drawn dashed,
as "maybe"; where it is annotated to return an agent and none can be found, it leads to "?". The graph says so in its
notes. What names stand for is looked up now: agents that are put into place later are not seen.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from aswarm import _public
from aswarm._agent import Agent

from ._dot import dot
from ._find import Offer, offer_of
from ._mermaid import mermaid
from ._parts import AgentNode, Handoff

__all__ = ["AgentNode", "Graph", "Handoff", "agent_graph"]


@dataclass(frozen=True, slots=True)
class Graph:
    """The agents that can be reached from one, that one first, and the handoffs between them."""

    agents: tuple[AgentNode, ...]
    handoffs: tuple[Handoff, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not certain, one sentence for each function; empty where all is."""
        unsure = [handoff for handoff in self.handoffs if not handoff.certain]
        functions = dict.fromkeys((handoff.source, handoff.function) for handoff in unsure)
        return tuple(self._note(*function, unsure) for function in functions)

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
        to = known or "an agent that is not there yet, or cannot be found"
        return f"{function} of {labels[source]} may hand off to {to}: only calling it would tell."


def agent_graph(agent: Agent) -> Graph:
    """The graph of everything that can be reached from `agent`; agents may point at each other.

    Raises ConfigurationError where an agent has functions that cannot be offered to a model.
    """
    offers = _reachable(agent)
    ids = {id(one): f"a{number}" for number, (one, _) in enumerate(offers, start=1)}
    labels = _labels([one for one, _ in offers])
    nodes = [
        AgentNode(ids[id(one)], one, label, _functions(offer))
        for (one, offer), label in zip(offers, labels, strict=True)
    ]
    handoffs = [
        Handoff(ids[id(one)], ids[id(found.target)] if found.target else None, found.function, found.certain)
        for one, offer in offers
        for found in offer.found
    ]
    return Graph(tuple(nodes), tuple(handoffs))


def _reachable(agent: Agent) -> list[tuple[Agent, Offer]]:
    offers: list[tuple[Agent, Offer]] = []
    known, waiting = {id(agent)}, deque([agent])
    while waiting:
        one = waiting.popleft()
        offers.append((one, offer_of(one)))
        for found in offers[-1][1].found:
            if found.target is not None and id(found.target) not in known:
                known.add(id(found.target))
                waiting.append(found.target)
    return offers


def _functions(offer: Offer) -> tuple[str, ...]:
    handoffs = {found.function for found in offer.found if found.certain}
    return tuple(name for name in offer.functions if name not in handoffs)


def _labels(agents: list[Agent]) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for agent in agents:
        seen[agent.name] += 1
        yield agent.name if seen[agent.name] == 1 else f"{agent.name} ({seen[agent.name]})"


_public.publish(globals())

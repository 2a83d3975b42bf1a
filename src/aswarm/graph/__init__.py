"""The graph of agents, their functions and their handoffs: as data, as Mermaid, or as DOT for Graphviz.

    graph = agent_graph(triage)
    print(graph.mermaid())

No function is called. A handoff is certain if the code shows it. This is true for an agent in `functions`, and for a function
whose source returns an agent: `return sales`, `return Result(agent=sales)`, even through local variables, conditions, partials
and attributes. If a function only refers to agents, as in `AGENTS[name]`, the handoff is a "maybe", drawn as a dashed line. If
the return annotation of a function is an agent, but no agent is found, the handoff leads to "?". The notes of the graph list
all uncertain handoffs. Names are resolved when the graph is created, so the graph does not contain agents that are assigned
later. `Graph.concurrency_notes` lists the tools of an agent that run together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aswarm._values import public_names as _public
from aswarm._values.agent import Agent
from aswarm._values.errors import ConfigurationError
from aswarm._values.text import one_line
from aswarm.extensions import Tool, tools_of

from ._returns import handoffs_of

_LONGEST = 1000  # characters of a name or a note


@dataclass(frozen=True, slots=True)
class AgentNode:
    """An agent in a graph.

    Args:
        id: The id in the graph: "a1", "a2", … in the order of the search.
        agent: The agent.
        label: The agent's name, with a number if another agent of the graph has the same name.
        functions: The names of the agent's functions for the model, in order, without certain handoffs.
    """

    id: str
    agent: Agent
    label: str
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Handoff:
    """A possible handoff from one agent to another, through a function.

    Args:
        source: The id of a node.
        target: The id of a node; None if only a call of the function would show the agent.
        function: The name of the function for the model.
        certain: True if the source shows that the function returns the agent; False if the function only refers to the agent.
    """

    source: str
    target: str | None
    function: str
    certain: bool


# --- Mermaid ---

# Inside of quotes, these characters would end the text, or start markup or a directive. Mermaid reads `#34;` as a character.
_ESCAPED = str.maketrans({character: f"#{ord(character)};" for character in '"#&<>`\\%;:'})


def mermaid(agents: Sequence[AgentNode], handoffs: Sequence[Handoff], notes: Sequence[str]) -> str:
    """Return the graph as a Mermaid flowchart, with a line break at its end."""
    lines = ["flowchart LR"]
    for node in agents:
        label = "<br/>".join([f"<b>{_mermaid_text(node.label)}</b>", *map(_mermaid_text, node.functions)])
        lines.append(f'    {node.id}["{label}"]')
    if any(handoff.target is None for handoff in handoffs):
        lines.append('    unknown(("?"))')
    for edge in handoffs:
        arrow, maybe = ("-->", "") if edge.certain else ("-.->", " (maybe)")
        lines.append(f'    {edge.source} {arrow}|"{_mermaid_text(edge.function)}{maybe}"| {edge.target or "unknown"}')
    if notes:
        lines.append("    %% dashed: maybe")
    lines += ["    %% " + one_line(note, _LONGEST).replace("%", "#37;") for note in notes]
    return "\n".join([*lines, ""])


def _mermaid_text(text: str) -> str:
    return one_line(text, _LONGEST).translate(_ESCAPED)


# --- DOT ---


def dot(agents: Sequence[AgentNode], handoffs: Sequence[Handoff], notes: Sequence[str]) -> str:
    """Return the graph as a digraph for Graphviz, with a line break at its end."""
    lines = [
        "digraph agents {",
        "    rankdir=LR;",
        '    graph [charset="UTF-8", fontname="sans-serif", labelloc=b, labeljust=l, fontsize=10];',
        '    node [shape=box, style=rounded, fontname="sans-serif"];',
        '    edge [fontname="sans-serif", fontsize=10];',
    ]
    if notes:
        lines.append(f"    label={_quoted(['dashed: maybe', *notes], end='l')};")
    lines += [f"    {node.id} [label={_quoted([node.label, *node.functions])}];" for node in agents]
    if any(handoff.target is None for handoff in handoffs):
        lines.append('    unknown [label="?", shape=circle];')
    for handoff in handoffs:
        maybe = "" if handoff.certain else ", style=dashed"
        label = _quoted([handoff.function if handoff.certain else f"{handoff.function} (maybe)"])
        lines.append(f"    {handoff.source} -> {handoff.target or 'unknown'} [label={label}{maybe}];")
    return "\n".join([*lines, "}", ""])


def _quoted(lines: Sequence[str], end: str = "n") -> str:
    """Return the lines as one quoted string. `end`: "n" for centred lines, "l" for left-aligned lines."""
    return '"' + f"\\{end}".join(map(_dot_text, lines)) + (f'\\{end}"' if end == "l" else '"')


def _dot_text(text: str) -> str:
    # In a label, a backslash starts an escape, and `&` starts an HTML entity.
    return one_line(text, _LONGEST).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")


__all__ = ["AgentNode", "Graph", "Handoff", "agent_graph"]


@dataclass(frozen=True, slots=True)
class Graph:
    """The agents that can be reached from a start agent, and the handoffs between them. The start agent is the first."""

    agents: tuple[AgentNode, ...]
    handoffs: tuple[Handoff, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """The uncertain handoffs: one sentence for each function. Empty if all handoffs are certain."""
        labels = {node.id: node.label for node in self.agents}
        targets: dict[tuple[str, str], list[str]] = {}
        for handoff in self.handoffs:
            if not handoff.certain:
                names = targets.setdefault((handoff.source, handoff.function), [])
                names += [labels[handoff.target]] if handoff.target else []
        return tuple(
            f"{function} of {labels[source]} may hand off to "
            f"{', '.join(names) or 'an agent that does not exist yet or cannot be found'}; only a call shows whether it does."
            for (source, function), names in targets.items()
        )

    @property
    def concurrency_notes(self) -> tuple[str, ...]:
        """Sentences about each agent: which tools run together within a turn, and why other tools run alone."""
        return tuple(f"{node.label}: {note}" for node in self.agents for note in concurrency_notes(node.agent))

    def mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart, which GitHub and GitLab draw in Markdown (a `mermaid` fence)."""
        return mermaid(self.agents, self.handoffs, self.notes)

    def dot(self) -> str:
        """Return the graph in the language of Graphviz, for `dot -Tsvg`."""
        return dot(self.agents, self.handoffs, self.notes)


def agent_graph(agent: Agent) -> Graph:
    """Return the graph of all agents that can be reached from `agent`. Handoffs may form cycles.

    Raises ConfigurationError if `agent` is not an Agent, or if an agent has a function that cannot be offered to a model.
    """
    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass anything
        raise ConfigurationError(f"agent must be an Agent, not {type(agent).__name__}")
    nodes: list[AgentNode] = []
    handoffs: list[Handoff] = []
    reached, ids, namesakes = [agent], {id(agent): "a1"}, Counter[str]()
    for source in reached:  # grows
        tools = tools_of(source)
        names = dict.fromkeys(tools)
        for handoff in (handoff for name, tool in tools.items() for handoff in handoffs_of(name, tool)):
            if (target := handoff.target) is not None and id(target) not in ids:
                reached.append(target)
                ids[id(target)] = f"a{len(reached)}"
            target_id = None if target is None else ids[id(target)]
            handoffs.append(Handoff(ids[id(source)], target_id, handoff.function, handoff.certain))
            if handoff.certain:
                names.pop(handoff.function, None)
        namesakes[source.name] += 1
        label = source.name if namesakes[source.name] == 1 else f"{source.name} ({namesakes[source.name]})"
        nodes.append(AgentNode(ids[id(source)], source, label, tuple(names)))
    return Graph(tuple(nodes), tuple(handoffs))


_public.publish(globals())


def concurrency_notes(agent: Agent) -> Iterator[str]:
    """Yield a sentence about the tools that run together, and a sentence for each reason why other tools run alone."""
    tools = tools_of(agent)
    together = {name: tool for name, tool in tools.items() if tool.effects.runs_together}
    changing = [
        name for name, tool in together.items() if tool.effects.may_return_result or tool.effects.writes_context
    ]
    waiting = [name for name, tool in together.items() if changing and tool.effects.must_see_order]
    if len(waiting) < len(together) or len(changing) < len(together):
        yield f"calls of {', '.join(together)} run together."
    for name in waiting:
        yield (
            f"{name} waits for earlier calls of {', '.join(changing)}, which may return a Result that changes the context; "
            "a return hint such as -> str excludes it."
        )
    alone = {name: _reason(tool) for name, tool in tools.items() if name not in together}
    for reason in dict.fromkeys(alone.values()):
        yield f"calls of {', '.join(name for name in alone if alone[name] == reason)} run alone, {reason}."


def _reason(tool: Tool[..., Any]) -> str:
    if tool.concurrent is not None:
        return "because of @tool(concurrent=False)"
    if tool.is_async:
        return "because they may change context_variables; with the hint Mapping, or a read-only type, they only read"
    return "because plain functions run one at a time"

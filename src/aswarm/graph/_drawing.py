"""The nodes and edges of a graph of agents, and their text in Mermaid and in DOT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aswarm._values.agent import Agent
from aswarm._values.text import one_line

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

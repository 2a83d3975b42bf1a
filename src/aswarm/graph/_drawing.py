"""The nodes and edges of a graph of agents, and how they are written as Mermaid and as DOT.

Decides the look, and what must be escaped. How handoffs are found is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aswarm._agent import Agent
from aswarm._text import one_line

_LONGEST = 1000  # characters of a name or a note


@dataclass(frozen=True, slots=True)
class AgentNode:
    """An agent in a graph.

    `id`: "a1", "a2", … in the order in which the agents were found. `label`: the agent's name, with a number where
    another agent of the graph has the same name. `functions`: the functions of the agent by their names for the model,
    in order, without those that are certain handoffs.
    """

    id: str
    agent: Agent
    label: str
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Handoff:
    """One agent can hand off to another, through a function.

    `source` and `target` are ids of nodes; `target` is None for an agent that cannot be found without calling the
    function. `function`: its name for the model. `certain`: True where the source shows that the function returns the
    agent, False where the function only refers to it.
    """

    source: str
    target: str | None
    function: str
    certain: bool


# --- Mermaid ---

# Mermaid reads `#number;` as a character. Inside quotes, these would end the text, or begin markup or a directive.
_ESCAPED = str.maketrans({character: f"#{ord(character)};" for character in '"#&<>`\\%;:'})


def mermaid(agents: Sequence[AgentNode], handoffs: Sequence[Handoff], notes: Sequence[str]) -> str:
    """The graph as a Mermaid flowchart, with a line break at its end."""
    return "\n".join(["flowchart LR", *_mermaid_lines(agents, handoffs, notes), ""])


def _mermaid_lines(agents: Sequence[AgentNode], handoffs: Sequence[Handoff], notes: Sequence[str]) -> Iterator[str]:
    for node in agents:
        lines = [f"<b>{_mermaid_text(node.label)}</b>", *map(_mermaid_text, node.functions)]
        yield f'    {node.id}["{"<br/>".join(lines)}"]'
    if any(handoff.target is None for handoff in handoffs):
        yield '    unknown(("?"))'
    for handoff in handoffs:
        arrow, maybe = ("-->", "") if handoff.certain else ("-.->", " (maybe)")
        yield f'    {handoff.source} {arrow}|"{_mermaid_text(handoff.function)}{maybe}"| {handoff.target or "unknown"}'
    if notes:
        yield "    %% dashed: maybe"
    for note in notes:
        yield "    %% " + one_line(note, _LONGEST).replace("%", "#37;")


def _mermaid_text(text: str) -> str:
    return one_line(text, _LONGEST).translate(_ESCAPED)


# --- DOT ---


def dot(agents: Sequence[AgentNode], handoffs: Sequence[Handoff], notes: Sequence[str]) -> str:
    """The graph as a digraph for Graphviz, with a line break at its end."""
    return "\n".join(["digraph agents {", *_dot_lines(agents, handoffs, notes), "}", ""])


def _dot_lines(agents: Sequence[AgentNode], handoffs: Sequence[Handoff], notes: Sequence[str]) -> Iterator[str]:
    yield "    rankdir=LR;"
    yield '    graph [charset="UTF-8", fontname="sans-serif", labelloc=b, labeljust=l, fontsize=10];'
    yield '    node [shape=box, style=rounded, fontname="sans-serif"];'
    yield '    edge [fontname="sans-serif", fontsize=10];'
    if notes:
        yield f"    label={_quoted(['dashed: maybe', *notes], end='l')};"
    for node in agents:
        yield f"    {node.id} [label={_quoted([node.label, *node.functions])}];"
    if any(handoff.target is None for handoff in handoffs):
        yield '    unknown [label="?", shape=circle];'
    for handoff in handoffs:
        maybe = "" if handoff.certain else ", style=dashed"
        label = _quoted([handoff.function if handoff.certain else f"{handoff.function} (maybe)"])
        yield f"    {handoff.source} -> {handoff.target or 'unknown'} [label={label}{maybe}];"


def _quoted(lines: Sequence[str], end: str = "n") -> str:
    """The lines as one quoted string; `end` is "n" for centred lines, "l" for lines that begin at the left."""
    return '"' + f"\\{end}".join(map(_dot_text, lines)) + (f'\\{end}"' if end == "l" else '"')


def _dot_text(text: str) -> str:
    # In a label a backslash begins an escape, and `&` an HTML entity.
    return one_line(text, _LONGEST).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")

"""A graph in the language of Graphviz. Decides the look and what must be escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ._parts import AgentNode, Handoff, one_line


def dot(agents: Sequence[AgentNode], handoffs: Sequence[Handoff], notes: Sequence[str]) -> str:
    """The digraph, with a line break at its end."""
    return "\n".join(["digraph agents {", *_lines(agents, handoffs, notes), "}", ""])


def _lines(agents: Sequence[AgentNode], handoffs: Sequence[Handoff], notes: Sequence[str]) -> Iterator[str]:
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
    return '"' + f"\\{end}".join(map(_text, lines)) + (f'\\{end}"' if end == "l" else '"')


def _text(text: str) -> str:
    """The text on one line: in a label a backslash begins an escape, and `&` an entity of HTML."""
    return one_line(text).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")

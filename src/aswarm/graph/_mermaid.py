"""A graph as a Mermaid flowchart. Decides the look and what must be escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ._parts import AgentNode, Handoff, one_line

# Mermaid reads `#number;` as a character. Inside quotes, these would end the text, or begin markup or a directive.
_ESCAPED = str.maketrans({character: f"#{ord(character)};" for character in '"#&<>`\\%;:'})


def mermaid(agents: Sequence[AgentNode], handoffs: Sequence[Handoff], notes: Sequence[str]) -> str:
    """The flowchart, with a line break at its end."""
    return "\n".join(["flowchart LR", *_lines(agents, handoffs, notes), ""])


def _lines(agents: Sequence[AgentNode], handoffs: Sequence[Handoff], notes: Sequence[str]) -> Iterator[str]:
    for node in agents:
        lines = [f"<b>{_text(node.label)}</b>", *map(_text, node.functions)]
        yield f'    {node.id}["{"<br/>".join(lines)}"]'
    if any(handoff.target is None for handoff in handoffs):
        yield '    unknown(("?"))'
    for handoff in handoffs:
        arrow, maybe = ("-->", "") if handoff.certain else ("-.->", " (maybe)")
        yield f'    {handoff.source} {arrow}|"{_text(handoff.function)}{maybe}"| {handoff.target or "unknown"}'
    if notes:
        yield "    %% dashed: maybe"
    for note in notes:
        yield "    %% " + one_line(note).replace("%", "#37;")


def _text(text: str) -> str:
    """The text on one line, with nothing in it that Mermaid would read as its own."""
    return one_line(text).translate(_ESCAPED)

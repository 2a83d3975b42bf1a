"""What a graph of agents is made of. Values only; how they are found and drawn is decided elsewhere."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from aswarm._agent import Agent


@dataclass(frozen=True, slots=True)
class AgentNode:
    """An agent in a graph.

    `id`: "a1", "a2", … in the order in which they were found. `label`: the agent's name, numbered where another agent
    of the graph has the same. `functions`: the names of what it offers to the model beside certain handoffs, in order.
    """

    id: str
    agent: Agent
    label: str
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Handoff:
    """One agent can hand off to another, through a function.

    `source` and `target` are ids of nodes; `target` is None for an agent that cannot be found without calling the
    function. `function`: its name for the model. `certain`: whether the function can be seen to return the agent; False
    where it only names it.
    """

    source: str
    target: str | None
    function: str
    certain: bool


def one_line(text: str) -> str:
    """The text on one line, without control characters and halves of surrogate pairs, which end files or break them."""
    shown = (" " if unicodedata.category(character) in ("Cc", "Cs") else character for character in text)
    return " ".join("".join(shown).split())

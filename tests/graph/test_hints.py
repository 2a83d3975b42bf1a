"""What return annotations say to a graph, where the source does not tell."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Protocol, TypeVar

import pytest
from graphs import told

from aswarm import Agent, Result

sales = Agent(name="Sales")
refunds = Agent(name="Refunds")
AGENTS = {"sales": sales, "refunds": refunds}


class Named(Protocol):
    name: str


def hinted(hint: Any) -> Any:
    def pick(name: str):
        return AGENTS[name]

    pick.__annotations__["return"] = hint
    return pick


@pytest.mark.parametrize(
    "hint", [Named, object, Any, TypeVar("T"), Agent | str, Annotated[Agent, "x"], Awaitable[Result]]
)
def test_an_annotation_that_leaves_room(hint: Any) -> None:
    """What the annotation does not exclude is looked for by name."""
    assert told(hinted(hint)) == ([], [("pick", "Sales"), ("pick", "Refunds")])


@pytest.mark.parametrize("hint", [None, str, dict[str, Agent], int | None, Annotated[str, Agent], Awaitable[str]])
def test_an_annotation_that_leaves_no_room(hint: Any) -> None:
    """A function that says that it returns something else is believed."""
    assert told(hinted(hint)) == ([], [])


@pytest.mark.filterwarnings("ignore:function 'pick'")
def test_an_annotation_that_cannot_be_resolved() -> None:
    """It says nothing, and the graph says nothing of it: that is told when the function is offered."""
    assert told(hinted("Unknown")) == ([], [("pick", "Sales"), ("pick", "Refunds")])

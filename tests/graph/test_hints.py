"""Return annotations, which decide where the source leaves a handoff open."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Protocol, TypeVar

import pytest

from aswarm import Agent, Result
from tests.support.graph.graphs import handoffs_of

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
def test_an_annotation_that_admits_an_agent(hint: Any) -> None:
    """Where the annotation does not exclude an agent, the agents that the function refers to are possible."""
    assert handoffs_of(hinted(hint)) == ([], [("pick", "Sales"), ("pick", "Refunds")])


@pytest.mark.parametrize("hint", [None, str, dict[str, Agent], int | None, Annotated[str, Agent], Awaitable[str]])
def test_an_annotation_that_excludes_agents(hint: Any) -> None:
    """A function that is annotated to return something else has no handoff."""
    assert handoffs_of(hinted(hint)) == ([], [])


@pytest.mark.filterwarnings("ignore:function 'pick'")
def test_an_annotation_that_cannot_be_resolved() -> None:
    """It decides nothing, and the graph gives no warning: the warning comes when the function is offered."""
    assert handoffs_of(hinted("Unknown")) == ([], [("pick", "Sales"), ("pick", "Refunds")])

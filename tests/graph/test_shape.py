"""The whole graph: every agent once, by name, with its functions and notes."""

from __future__ import annotations

import pytest

from aswarm import Agent, ConfigurationError, tool
from aswarm.graph import agent_graph
from tests.support.graph.graphs import certain, maybe

sales = Agent(name="Sales")


def to_sales():
    return sales


def from_dict(name: str):
    return {"sales": sales, "refunds": Agent(name="Refunds")}[name]


def makes_one() -> Agent:
    return Agent(name="New")


def test_agents_that_hand_off_to_each_other() -> None:
    """Cycles end; every agent is in the graph once, the first one first."""

    def back():
        return one

    one = Agent(name="One")
    two = Agent(name="Two", functions=[back])
    one.functions = [two, two, one]
    graph = agent_graph(one)
    assert [node.label for node in graph.agents] == ["One", "Two"]
    assert certain(graph) == [
        ("One", "transfer_to_two", "Two"),
        ("One", "transfer_to_one", "One"),
        ("Two", "back", "One"),
    ]
    assert maybe(graph) == []
    assert graph.notes == ()


def test_two_agents_of_one_name_are_two() -> None:
    """Agents are distinguished by identity; their labels have numbers."""

    def first():
        return same

    def second():
        return other

    same, other = Agent(name="Same"), Agent(name="Same")
    graph = agent_graph(Agent(name="Same", functions=[first, second]))
    assert [node.label for node in graph.agents] == ["Same", "Same (2)", "Same (3)"]
    assert [node.id for node in graph.agents] == ["a1", "a2", "a3"]
    assert certain(graph) == [("Same", "first", "Same (2)"), ("Same", "second", "Same (3)")]


def test_functions_are_listed_beside_handoffs() -> None:
    """A node lists the functions that are not certain handoffs, by their names for the model, in order."""

    @tool(name="look_up")
    def find(order: int) -> str:
        return ""

    graph = agent_graph(Agent(functions=[find, to_sales, print_nothing := tool(name="log")(print_it), print_nothing]))
    assert graph.agents[0].functions == ("look_up", "log")


def print_it(text: str) -> None:
    print(text)


def test_functions_that_cannot_be_offered_raise() -> None:
    """Two functions of one name are an error, as in a run."""
    with pytest.raises(ConfigurationError, match="two different functions named 'print_it'"):
        agent_graph(Agent(functions=[print_it, tool(name="print_it")(to_sales)]))


def test_a_value_that_is_no_agent_is_refused() -> None:
    """The error names the type of the value."""
    with pytest.raises(ConfigurationError, match="must be an Agent, not list"):
        agent_graph([Agent()])  # type: ignore[arg-type]


def test_each_uncertain_function_has_a_note() -> None:
    """Each function whose target only a call decides has one note."""
    graph = agent_graph(Agent(name="Start", functions=[from_dict, makes_one, sales]))
    assert graph.notes == (
        "from_dict of Start may hand off to Sales; only a call shows whether it does.",
        "makes_one of Start may hand off to an agent that does not exist yet or cannot be found; only a call shows whether it does.",
    )
    assert graph.agents[0].functions == ("from_dict", "makes_one")

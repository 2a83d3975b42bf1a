"""The tools of an agent: which functions are one tool, which are refused, and how handoffs are named."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import re
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, ConfigurationError, tool
from aswarm._tools.directory import AgentDirectory
from aswarm._tools.toolbox import toolbox, tools_of
from aswarm._values.errors import CallerMistake
from aswarm.tools import function_tool
from aswarm.util import function_to_json
from tests.support.tools.sample_functions import Service, Slotted, Unhashable, find, look


def names_of(*functions: Any) -> list[str]:
    return list(tools_of(Agent(functions=list(functions))))


# --- the tools of an agent --------------------------------------------------------------------------------------------


def test_a_tool_is_the_one_that_was_listed() -> None:
    """A tool made by `@tool` is used as it is; a function becomes one that calls it."""
    made = tool(look)
    assert tools_of(Agent(functions=[made]))["look"] is made
    assert tools_of(Agent(functions=[look]))["look"].function is look


service = Service()
unhashable = Unhashable()
slotted = Slotted()
made_once = tool(look)
partial_once = functools.partial(look)


@pytest.mark.parametrize(
    "functions",
    [
        lambda: [look, look],
        lambda: [made_once, made_once],
        lambda: [partial_once, partial_once],
        lambda: [service.bare, service.bare],
        lambda: [service.plain, service.plain],
        lambda: [service.slow, service.slow],
        lambda: [service.made, service.made],
        lambda: [Service.made, Service.made],
        lambda: [unhashable, unhashable],
        lambda: [slotted, slotted],
    ],
    ids=[
        "function",
        "tool",
        "partial",
        "method",
        "tool_method",
        "async_tool_method",
        "class_method",
        "class_method_of_class",
        "unhashable",
        "slots",
    ],
)
def test_a_function_listed_twice_counts_once(functions: Callable[[], list[Any]]) -> None:
    """Also a method, which is a new object each time it is looked up."""
    assert len(tools_of(Agent(functions=functions()))) == 1


def _another_look() -> Callable[..., Any]:
    def look(city: str) -> str:
        """Another one."""
        return city

    return look


@pytest.mark.parametrize(
    "functions",
    [
        [look, _another_look()],
        [look, tool(name="look")(find)],
        [Service().bare, Service().bare],
        [Unhashable(), Unhashable()],
        [Agent(name="Sales Team"), Agent(name="sales team")],
        [Agent(name="Sales"), tool(name="transfer_to_sales")(look)],
    ],
    ids=["functions", "renamed", "methods of two objects", "callables", "agents", "agent and function"],
)
def test_two_different_functions_of_one_name_are_refused(functions: list[Any]) -> None:
    """The model could not tell them apart: the error names agent and function."""
    with pytest.raises(ConfigurationError) as caught:
        tools_of(Agent(name="Desk", functions=functions))
    assert "'Desk'" in str(caught.value)
    assert repr(_as_name(functions[0])) in str(caught.value)


def _as_name(function: Any) -> str:
    return names_of(function)[0]


@pytest.mark.parametrize("thing", [None, "look", 5, {"type": "function"}])
def test_what_is_no_function_is_refused(thing: object) -> None:
    """The error shows the object."""
    with pytest.raises(ConfigurationError, match="cannot be used as a function of an agent"):
        tools_of(Agent(functions=[thing]))


def test_an_agent_takes_its_toolbox_along() -> None:
    """Also where its functions lead back to it: nothing else holds them."""
    agent = Agent(functions=[Agent(name="Desk")])
    agent.functions[0].functions = [agent]
    toolbox(agent)
    reference = weakref.ref(agent)
    del agent
    gc.collect()
    assert reference() is None


def test_copies_of_an_agent_go_without_its_toolbox() -> None:
    """And so does a pickle: handoffs could not be pickled."""
    agent = Agent(functions=[Agent(name="Desk")])
    toolbox(agent)
    for copied in (agent.model_copy(), copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        assert copied == agent
        assert toolbox(copied) is not toolbox(agent)
        assert list(toolbox(copied).tools) == ["transfer_to_desk"]


@tool(approve=True)
def refund(order: int) -> str:
    return f"refunded {order}"


ANYTHING = {"type": "object", "properties": {}}


class Desk:
    @tool
    def close(self) -> str:
        return "closed"


def test_a_tool_of_a_module_is_pickled_by_its_name() -> None:
    """As a function is. Other tools are pickled by their fields, if their functions can be pickled."""
    agent = Agent(
        functions=[refund, Desk.close, function_tool(look, name="look_again", description="", parameters=ANYTHING)]
    )
    assert pickle.loads(pickle.dumps(agent)).functions[:2] == [refund, Desk.close]
    again = pickle.loads(pickle.dumps(agent)).functions[2]
    assert (again.function, again.name) == (look, "look_again")


def test_the_toolbox_is_made_again_once_the_agent_has_changed() -> None:
    """Other functions, or a handoff of another name, make another one."""
    desk = Agent(name="Desk")
    agent = Agent(functions=[look, desk])
    first = toolbox(agent)
    desk.name = "Office"
    second = toolbox(agent)
    agent.functions = [look]
    third = toolbox(agent)
    agent.functions.append(find)
    fourth = toolbox(agent)
    assert [list(box.tools) for box in (first, second, third, fourth)] == [
        ["look", "transfer_to_desk"],
        ["look", "transfer_to_office"],
        ["look"],
        ["look", "find"],
    ]


# --- handoffs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent_name", "tool_name"),
    [
        ("Sales", "transfer_to_sales"),
        ("Sales Agent", "transfer_to_sales_agent"),
        ("sales-agent_2", "transfer_to_sales-agent_2"),
        ("Flüge & Hotels!", "transfer_to_fl_ge_hotels"),
        ("  Sales  ", "transfer_to_sales"),
        ("日本語", "transfer_to_1"),
        ("", "transfer_to_1"),
        ("x" * 100, "transfer_to_" + "x" * 52),
    ],
)
def test_a_handoff_is_named_after_its_agent(agent_name: str, tool_name: str) -> None:
    """Lowercased, illegal runs as one `_`, at most 64 characters, numbered where nothing is left."""
    assert names_of(Agent(name=agent_name)) == [tool_name]


@given(st.text(max_size=100))
def test_any_agent_name_gives_a_name_that_the_api_takes(agent_name: str) -> None:
    """Whatever an agent is called, its handoff can be offered, and hands over to it."""
    agent = Agent(name=agent_name)
    ((name, made),) = tools_of(Agent(functions=[agent])).items()
    assert name.startswith("transfer_to_")
    assert all(char.isascii() and (char.isalnum() or char in "_-") for char in name)
    assert len(name) <= 64
    assert made() is agent


def test_a_number_does_not_meet_an_agent_that_is_called_so() -> None:
    """Numbering finds a free number: an agent named "1" is no reason to refuse."""
    assert len(names_of(Agent(name="1"), Agent(name="日本"))) == 2


def test_a_handoff_says_to_whom_and_takes_nothing() -> None:
    """The description names the agent; there are no parameters."""
    made = function_to_json(tools_of(Agent(functions=[Agent(name="Sales Agent")]))["transfer_to_sales_agent"])[
        "function"
    ]
    assert "Sales Agent" in made["description"]
    assert made["parameters"] == {"type": "object", "properties": {}, "required": []}


def test_a_handoff_runs_beside_its_neighbours_without_a_thread() -> None:
    """It only gives back its agent, and changes no context."""
    made = tools_of(Agent(functions=[Agent(name="Sales")]))["transfer_to_sales"]
    assert made.effects.runs_together
    assert not made.thread
    assert not made.effects.takes_context


# --- hints that pydantic cannot describe ------------------------------------------------------------------------------


class Database:
    """Something that no JSON value can become."""


def query(text: str, db: Database) -> str:
    """Query the database."""
    return f"{text} in {db}"


def lower_case(data: any) -> str:  # type: ignore[valid-type]
    """Take `any`, as it is often written for `Any`."""
    return str(data)


def with_more(**more: Database) -> str:
    """Take arguments of any names."""
    return str(more)


@pytest.mark.parametrize(
    ("function", "place"),
    [(query, "parameter 'db'"), (lower_case, "parameter 'data'"), (with_more, "**parameter")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_hint_that_cannot_be_described_is_reported_with_its_remedy(function: Any, place: str) -> None:
    """The function of an agent warns, `@tool` refuses; `function_to_json` is Swarm's, and quiet."""
    with pytest.warns(UserWarning, match=re.escape(f"function '{function.__name__}': {place} has the hint")) as caught:
        tools_of(Agent(functions=[function]))
    assert "write Resource[" in str(caught[0].message)
    assert caught[0].filename == __file__
    with pytest.raises(ConfigurationError, match=re.escape(f"function '{function.__name__}': {place} has the hint")):
        tools_of(Agent(functions=[tool(function)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function_to_json(function)


def test_a_value_that_is_bound_is_no_parameter() -> None:
    """The remedy of the warning: nothing is reported."""
    [bound] = tools_of(Agent(functions=[tool(functools.partial(query, db=Database()))])).values()
    assert list(function_to_json(bound)["function"]["parameters"]["properties"]) == ["text"]


# --- the names of agents ---


def test_a_listed_agent_comes_before_a_found_one_of_its_name() -> None:
    """So a caller decides between two agents of one name."""
    listed = Agent(name="Twin")
    first = Agent(name="First", functions=[Agent(name="Twin")])
    directory = AgentDirectory([first, listed])
    assert directory.find("Twin") is listed
    assert directory.known == {"First": first, "Twin": listed}


def test_a_name_that_two_found_agents_have_means_none() -> None:
    """A later run could not tell them apart; the nearer one is not preferred."""
    between = Agent(name="Between", functions=[Agent(name="Twin")])
    first = Agent(name="First", functions=[Agent(name="Twin"), between])
    directory = AgentDirectory([first])
    assert directory.find("Twin") is None
    assert list(directory.known) == ["First", "Between"]
    with pytest.raises(ConfigurationError, match=r"the run is with 'Twin'.* more than one agent of this name"):
        directory.get("Twin", "the run is with")


def test_an_agent_that_was_added_later_is_found() -> None:
    """A check looks again before it refuses an agent."""
    first = Agent(name="First")
    directory = AgentDirectory([first])
    late = Agent(name="Late")
    with pytest.raises(CallerMistake, match=r"over handed off to 'Late'.* no agent of this name"):
        directory.check(late, "over handed off to")
    first.functions.append(late)
    directory.check(late, "over handed off to")
    assert directory.find("Late") is late


def test_two_listed_agents_of_one_name_are_refused() -> None:
    """The same agent twice is one agent."""
    with pytest.raises(ConfigurationError, match=r"two agents named 'A'; .* its own name"):
        AgentDirectory([Agent(name="A"), Agent(name="A")])
    agent = Agent(name="A")
    assert AgentDirectory([agent, agent]).known == {"A": agent}

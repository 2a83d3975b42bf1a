"""Agent: with Swarm's defaults, and without Swarm's traps."""

from __future__ import annotations

import copy
import pickle
import re
from functools import partial
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from aswarm import Agent, AsyncSwarm, ConfigurationError, Response, Result, tool
from aswarm.testing import ScriptedModel, call
from tests.support.tools.hint_schemas import names_of
from tests.support.values.agent_rings import ring

N = TypeVar("N")


def look(city: str) -> str:
    """Look around."""
    return city


class Service:
    def find(self) -> str:
        return ""


def test_the_defaults_are_swarms() -> None:
    """An Agent without arguments is Swarm's."""
    agent = Agent()
    assert (agent.name, agent.model, agent.instructions) == ("Agent", "gpt-6-luna", "You are a helpful agent.")
    assert (agent.functions, agent.tool_choice, agent.parallel_tool_calls) == ([], None, True)
    assert agent.model_settings == {}


def test_the_list_that_was_given_is_not_the_agents_own() -> None:
    """As in Swarm: changing the caller's list later changes no agent, and the other way round."""
    functions = [look]
    agent = Agent(functions=functions)
    agent.functions.append(print)
    assert functions == [look]


@pytest.mark.parametrize("function", [look, tool(look), Service().find, partial(look), Service, len, Agent(), print, 5])
def test_functions_are_kept_as_they_are(function: Any) -> None:
    """Whatever is listed is the very object; a tool is not unwrapped, an agent not copied."""
    assert Agent(functions=[function]).functions[0] is function


@pytest.mark.parametrize("field", ["name", "model", "instructions", "functions", "tool_choice", "model_settings"])
def test_a_value_of_the_wrong_kind_is_refused(field: str) -> None:
    """The error of pydantic names the field."""
    with pytest.raises(ValidationError, match=field):
        Agent.model_validate({field: 5})


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("instruction", "instructions"),
        ("function", "functions"),
        ("functoins", "functions"),
        ("tools_choice", "tool_choice"),
        ("parallel_tool_call", "parallel_tool_calls"),
        ("Name", "name"),
        ("model_setting", "model_settings"),
        ("description", "instructions"),  # a warning, because an example of Swarm's has it
    ],
)
def test_an_unknown_field_is_ignored_with_a_warning_that_names_the_nearest(typo: str, meant: str) -> None:
    """As in Swarm it does nothing, but there is a warning."""
    with pytest.warns(UserWarning, match=rf"'{typo}'.*'{meant}'") as caught:
        agent = Agent(**{typo: "x"})
    assert agent == Agent()
    assert not hasattr(agent, typo)
    assert caught[0].filename == __file__


def test_an_unknown_field_that_is_near_to_none_names_them_all() -> None:
    """The warning lists the fields."""
    with pytest.warns(UserWarning, match=r"'zzz'.*name, model, instructions, functions"):
        Agent(zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("tools", "functions=[...]"),
        ("handoffs", "functions=[...]"),
        ("prompt", "instructions=..."),
        ("system_prompt", "instructions=..."),
        ("system_message", "instructions=..."),
        ("output_type", "output=..."),
        ("response_format", "output=..."),
    ],
)
def test_a_word_of_another_library_is_an_error_that_names_ours(word: str, ours: str) -> None:
    """An agent without its tools would look as if it worked. The error is no ValidationError."""
    with pytest.raises(ConfigurationError, match=rf"no field '{word}'.*{re.escape(ours)}"):
        Agent(**{word: "x"})


class WithTools(Agent):
    """An agent of a user's own with a field of another library."""

    tools: list[str] = []
    output: str = Field("", alias="output_type")


def test_a_subclass_may_declare_a_word_of_another_library() -> None:
    """It is a field of its own then, under its alias too."""
    agent = WithTools(tools=["x"], output_type="y")
    assert (agent.tools, agent.output) == (["x"], "y")


def test_an_agent_has_the_name_of_its_handoff_as_a_function() -> None:
    """An agent in `agent.functions` has the name of its handoff, and no new field."""
    sales, unnamed = Agent(name="Sales Agent"), Agent(name="销售")
    triage = Agent(functions=[look, sales, unnamed])
    assert [function.__name__ for function in triage.functions] == ["look", "transfer_to_sales_agent", "transfer_to_1"]
    assert names_of(triage) == ["look", "transfer_to_sales_agent", "transfer_to_1"]
    assert not any("__name__" in fields for fields in (Agent.model_fields, sales.model_dump(), vars(sales)))
    assert repr(sales) == "Agent(name='Sales Agent', model='gpt-6-luna', functions=[])"
    assert (Agent.__name__, WithTools.__name__) == ("Agent", "WithTools")
    sales.name = "Shop"
    assert sales.__name__ == "transfer_to_shop"
    assert copy.deepcopy(sales) == sales == pickle.loads(pickle.dumps(sales))


class Open(Agent):
    """An agent that takes anything."""

    model_config = ConfigDict(extra="allow")


def test_a_subclass_that_takes_further_fields_is_not_warned_about_them() -> None:
    """Nothing is ignored there."""
    assert Open(label="x").model_extra == {"label": "x"}  # type: ignore[call-arg]


def test_repr_shows_name_model_and_functions() -> None:
    """Names are shown; instructions are not, because they may be long."""
    agent = Agent(
        name="Desk", functions=[look, tool(name="other")(look), Agent(name="Sales"), Service().find, Service()]
    )
    text = repr(agent)
    assert text.startswith("Agent(name='Desk', model='gpt-6-luna', functions=[")
    for name in ("look", "other", "Sales", "find", "Service"):
        assert repr(name) in text
    assert "helpful" not in text
    assert str(agent) == text


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_repr_ends_when_agents_point_at_each_other(size: int) -> None:
    """The repr of a container of such agents ends too."""
    agent = ring(size)
    for holder in (agent, Result(agent=agent), Response(agent=agent)):
        assert "Agent(name='A'" in repr(holder)
        assert str(holder)


@given(st.integers(1, 5), st.integers(1, 5))
def test_comparison_ends_when_agents_point_at_each_other(left: int, right: int) -> None:
    """Rings of alike agents look alike from inside, whatever their size; rings with another name do not."""
    assert ring(left) == ring(right)
    assert ring(left) != ring(right, "B")
    assert Result(agent=ring(left)) == Result(agent=ring(right))


_agents = st.recursive(
    st.builds(Agent, name=st.sampled_from("AB"), model=st.sampled_from(["m", "n"])),
    lambda inner: st.builds(
        Agent, name=st.sampled_from("AB"), functions=st.lists(st.one_of(inner, st.just(look)), max_size=2)
    ),
    max_leaves=4,
)


@given(_agents, _agents)
def test_equality_is_reflexive_and_symmetric_and_field_by_field(a: Agent, b: Agent) -> None:
    """As Swarm's: two agents are equal when all their fields are."""
    assert a == a
    assert a == a.model_copy()
    assert (a == b) is (b == a)
    fields = ("name", "model", "functions")
    assert (a == b) is all(getattr(a, field) == getattr(b, field) for field in fields)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "x"),
        ("model", "x"),
        ("instructions", "x"),
        ("functions", [look]),
        ("tool_choice", "auto"),
        ("parallel_tool_calls", False),
        ("model_settings", {"temperature": 0}),
    ],
)
def test_every_field_counts(field: str, value: Any) -> None:
    """One different field makes two agents different."""
    assert Agent(**{field: value}) != Agent()
    assert Agent(**{field: value}) == Agent(**{field: value})


def test_methods_are_compared_as_methods() -> None:
    """A bound method looked up twice is the same function; a method of another object is another function."""
    service = Service()
    assert Agent(functions=[service.find]) == Agent(functions=[service.find])
    assert Agent(functions=[service.find]) != Agent(functions=[Service().find])


def test_an_agent_is_no_key() -> None:
    """It may change, so it has no hash, as in Swarm."""
    with pytest.raises(TypeError):
        hash(Agent())


@pytest.mark.asyncio
async def test_an_agent_may_have_a_private_attribute_of_any_name() -> None:
    """The tools that a run keeps with an agent do not collide with a private attribute of a subclass."""

    def look() -> str:
        return "seen"

    class Mine(Agent):
        _toolbox: list[str] = PrivateAttr(default_factory=lambda: ["hammer"])

    agent = Mine(functions=[look])
    response = await AsyncSwarm(ScriptedModel([call("look"), "Done."]).client()).run(agent, "Hi")
    assert response.text == "Done."
    assert agent._toolbox == ["hammer"]


class Kept(Agent):
    """A subclass with extra fields and private attributes."""

    model_config = ConfigDict(extra="allow")
    _notes: list[Any] = PrivateAttr(default_factory=list)


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda agent: agent.model_copy(deep=True), lambda agent: pickle.loads(pickle.dumps(agent))],
)
def test_a_deep_copy_shares_no_private_attribute_and_no_extra_field(copied: Any) -> None:
    """Objects that fields and private attributes share stay shared in the copy, also in a cycle of agents."""
    agent, shared = Kept(name="Kept", more=[1]), [2]
    agent.model_settings["shared"] = shared
    agent._notes += [shared, agent]
    made = copied(agent)
    assert (made.more, made._notes[0], made._notes[1] is made) == ([1], [2], True)
    assert made._notes[0] is made.model_settings["shared"]
    assert made.more is not agent.more
    assert made._notes[0] is not shared


def test_a_copy_has_private_attributes_of_its_own() -> None:
    agent = Kept(name="Kept")
    for made in (copy.copy(agent), agent.model_copy()):
        made._notes = [1]
        made.more = 2  # type: ignore[attr-defined]
        assert (agent._notes, agent.__pydantic_extra__) == ([], {})


class Trip(BaseModel):
    city: str


def test_the_type_of_the_answers_is_only_for_type_checkers() -> None:
    """`Agent[Trip]` is `Agent` itself: an agent with a type prints, copies, pickles and describes itself as any agent."""
    typed: Any = Agent[Trip](name="A", output=Trip)
    assert Agent[Trip] is Agent and type(typed) is Agent
    assert typed == Agent(name="A", output=Trip) and repr(typed) == repr(Agent(name="A", output=Trip))
    assert pickle.loads(pickle.dumps(typed)) == copy.deepcopy(typed) == copy.copy(typed) == typed


def test_a_subclass_may_have_its_own_types() -> None:
    """A subclass of `Agent[Trip]`, and a generic subclass with a field of its own type."""

    class TripAgent(Agent[Trip]):
        pass

    class Noted(Agent, Generic[N]):
        note: N

    assert TripAgent().name == "Agent"
    assert Noted[int](note="3").note == 3  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Noted[int](note="three")  # type: ignore[arg-type]

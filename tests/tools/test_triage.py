"""`create_triage_agent`: who may hand over to whom after it was called, once and again."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, ConfigurationError
from aswarm.agents import create_triage_agent
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.tools.hint_schemas import names_of


def sell() -> str:
    return "sold"


def give_back() -> str:
    return "given back"


def two_agents() -> tuple[Agent, Agent]:
    return Agent(name="Sales", functions=[sell]), Agent(name="Refunds", functions=[give_back])


def made(agents: Any, add_backlinks: bool = True, name: str = "Triage") -> Agent:
    return create_triage_agent(name, "Hand over.", agents, add_backlinks)


# --- the triage agent ---


def test_the_agents_are_handoffs_of_the_triage_agent() -> None:
    """In their order; name and instructions are those given, the rest is an agent's default."""
    sales, refunds = two_agents()
    triage = create_triage_agent(name="Triage", instructions="Hand over.", agents=[sales, refunds])
    assert triage == Agent(name="Triage", instructions="Hand over.", functions=[sales, refunds])
    assert names_of(triage) == ["transfer_to_sales", "transfer_to_refunds"]


def test_with_backlinks_each_agent_can_hand_back() -> None:
    """The way back comes after the agent's own functions."""
    sales, refunds = two_agents()
    triage = made([sales, refunds])
    assert names_of(sales) == ["sell", "transfer_to_triage"]
    assert names_of(refunds) == ["give_back", "transfer_to_triage"]
    assert sales.functions[-1] is refunds.functions[-1] is triage


def test_other_fields_are_those_of_the_triage_agent() -> None:
    """The triage agent has its own model, settings and tool choice; the other agents keep theirs."""
    sales, refunds = two_agents()
    settings = {"temperature": 0}
    triage = create_triage_agent(
        "Triage", "Hand over.", [sales, refunds], model="small", model_settings=settings, tool_choice="required"
    )
    assert (triage.model, triage.model_settings, triage.tool_choice) == ("small", settings, "required")
    assert triage.parallel_tool_calls is True
    assert sales.model == "gpt-6-luna"
    assert create_triage_agent("T", "Hand over.", [], parallel_tool_calls=False).parallel_tool_calls is False


def test_any_iterable_of_agents_will_do() -> None:
    """A generator is read once."""
    sales, refunds = two_agents()
    triage = made(agent for agent in (sales, refunds))
    assert triage.functions == [sales, refunds]
    assert names_of(refunds) == ["give_back", "transfer_to_triage"]


@pytest.mark.asyncio
async def test_a_conversation_goes_there_and_back() -> None:
    """Triage hands to sales, sales back to triage, triage to refunds, in one run."""
    sales, refunds = two_agents()
    script = ["transfer_to_sales", "transfer_to_triage", "transfer_to_refunds", "give_back"]
    model = ScriptedModel([*map(call, script), "Done."])
    response = await AsyncSwarm(client=model.client()).run(made([sales, refunds]), "My money, please.")
    assert response.agent is refunds
    assert [m["sender"] for m in response.messages if m["role"] == "assistant"] == [
        "Triage",
        "Sales",
        "Triage",
        "Refunds",
        "Refunds",
    ]
    check_history(response.messages)


# --- twice ------------------------------------------------------------------------------------------------------------


def test_an_agent_given_twice_counts_once() -> None:
    """As a handoff, and for its backlink."""
    sales, _ = two_agents()
    triage = made([sales, sales])
    assert triage.functions == [sales]
    assert sales.functions == [sell, triage]


def test_called_again_each_agent_has_one_way_back_to_the_newest() -> None:
    """So that a notebook's cell may be run again."""
    sales, refunds = two_agents()
    made([sales, refunds])
    again = made([sales, refunds])
    assert names_of(again) == ["transfer_to_sales", "transfer_to_refunds"]
    for agent in (sales, refunds):
        assert len(agent.functions) == 2
        assert agent.functions[-1] is again


def test_triage_agents_of_other_names_keep_their_backlinks() -> None:
    """Two desks may share an agent, which can hand back to either."""
    sales, _ = two_agents()
    day, night = made([sales], name="Day desk"), made([sales], name="Night desk")
    assert sales.functions == [sell, day, night]


# --- functions that are changed ---------------------------------------------------------------------------------------


def test_a_list_that_the_caller_holds_is_not_changed() -> None:
    """Two agents may share a list; only named agents get the way back."""
    shared = [sell]
    sales, refunds = two_agents()
    sales.functions = refunds.functions = shared
    made([sales])
    assert shared == [sell]
    assert names_of(refunds) == ["sell"]
    assert names_of(sales) == ["sell", "transfer_to_triage"]


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_what_is_no_agent_is_refused() -> None:
    """A function that returns an agent is listed in `functions`, not here."""
    sales, _ = two_agents()
    with pytest.raises(ConfigurationError, match=r"takes a list of agents, and <function sell .*> is not an Agent"):
        made([sales, sell])
    assert sales.functions == [sell]


def test_two_agents_whose_handoffs_have_one_name_are_refused() -> None:
    """The model could not tell them apart."""
    with pytest.raises(ConfigurationError, match="'Triage' has two different functions named 'transfer_to_sales'"):
        made([Agent(name="Sales"), Agent(name="sales!")])


def test_a_backlink_with_the_name_of_another_function_is_refused() -> None:
    """And no agent is changed, not even the agents before it."""

    def transfer_to_triage() -> str:
        return "a function of the same name"

    sales, refunds = two_agents()
    refunds.functions.append(transfer_to_triage)
    with pytest.raises(ConfigurationError, match="'Refunds' already has a function named 'transfer_to_triage'"):
        made([sales, refunds])
    assert sales.functions == [sell]
    assert refunds.functions == [give_back, transfer_to_triage]


def test_the_hints_of_functions_are_left_for_the_first_run() -> None:
    """A hint may name a class that the module defines further down: no schema is built here, where it would be kept."""

    def look_up(item: "DefinedFurtherDown") -> str:  # type: ignore[name-defined]  # noqa: F821, UP037
        return "found"

    agent = Agent(name="Sales", functions=[look_up])
    made([agent])  # a schema made now would warn that the hint cannot be resolved
    with pytest.warns(UserWarning, match="cannot be resolved"):
        names_of(agent)

"""A forced tool choice holds until the first tool result, and each call keeps the tool it was made for."""

from __future__ import annotations

from typing import Any

import pytest
from recording import USER, WHOLE, asking, complete, finish, look, one_turn, other, run_of, slow, told, wire_call

from aswarm import Agent
from aswarm._run.state import RunState

# --- forced tool choice -----------------------------------------------------------------------------------------------


def choice_of(state: RunState) -> object:
    """The tool_choice of the next request."""
    return state.request("I", WHOLE).body.get("tool_choice")


FORCES = ["required", "any", {"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize("choice", FORCES)
def test_a_forced_choice_relaxes_after_the_first_tool_result(choice: Any) -> None:
    """A choice that forces a call holds until the agent has had a tool result in this run, then it is "auto"."""
    state = run_of(agent=Agent(functions=[look], tool_choice=choice))
    assert choice_of(state) == choice
    one_turn(state)
    assert choice_of(state) == "auto"


@pytest.mark.parametrize("choice", FORCES)
def test_a_forced_choice_in_the_settings_relaxes_as_well(choice: Any) -> None:
    """A choice that came through `model_settings` would otherwise call for ever."""
    state = run_of(agent=Agent(functions=[look], model_settings={"tool_choice": choice}))
    assert choice_of(state) == choice
    one_turn(state)
    assert choice_of(state) == "auto"


@pytest.mark.parametrize(
    "choice", ["auto", "none", None, {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}]
)
def test_other_choices_hold(choice: Any) -> None:
    """A choice that forces nothing stays: relaxing allowed_tools would offer what the user has withheld."""
    state = run_of(agent=Agent(functions=[look], tool_choice=choice))
    one_turn(state)
    assert choice_of(state) == choice


def test_a_forced_choice_among_some_tools_relaxes_to_those() -> None:
    """OpenAI's allowed_tools in the mode "required" relaxes to the mode "auto", and withholds what it withheld."""
    tools = [{"type": "function", "function": {"name": "look"}}]
    forced, free = (
        {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}} for mode in ("required", "auto")
    )
    state = run_of(agent=Agent(functions=[look, other], tool_choice=forced))
    assert choice_of(state) == forced
    one_turn(state)
    assert choice_of(state) == free


def test_a_forced_choice_is_the_agents_own() -> None:
    """Another agent's tool result relaxes nothing; coming back to an agent that has had its own does."""
    b = Agent(name="B", functions=[look], tool_choice="required")
    a = Agent(name="A", functions=[look], tool_choice="required")
    state = run_of(agent=a)
    one_turn(state, b)
    assert choice_of(state) == "required"
    one_turn(state, a)
    assert choice_of(state) == "auto"


def test_equal_agents_are_told_apart() -> None:
    """Two agents that are equal are two agents all the same."""
    a, b = (Agent(functions=[look], tool_choice="required") for _ in range(2))
    state = run_of(agent=a)
    one_turn(state, b)
    assert choice_of(state) == "required"


def test_results_of_an_earlier_run_relax_nothing() -> None:
    """Only results of this run count: a history with tool messages in it does not relax the choice."""
    agent = Agent(functions=[look], tool_choice="required")
    assert choice_of(run_of(USER, asking(wire_call()), told("c"), USER, agent=agent)) == "required"


def test_a_resumed_call_relaxes() -> None:
    """The result of a call that this run has resumed is a result of this run."""
    state = run_of(USER, asking(wire_call()), agent=Agent(functions=[look], tool_choice="required"), resume=True)
    finish(state.calls[0])
    state.end_turn()
    assert choice_of(state) == "auto"


# --- tools ------------------------------------------------------------------------------------------------------------


def test_functions_may_change_during_a_run() -> None:
    """Functions that are added to an agent while it runs are offered in the next request."""
    agent = Agent(functions=[look])
    state = run_of(agent=agent)
    assert list(state.tools) == ["look"]
    assert state.tools is state.tools
    agent.functions.append(other)
    assert list(state.tools) == ["look", "other"]
    agent.functions[0] = slow
    assert [made["function"]["name"] for made in state.request("I", WHOLE).body["tools"]] == ["slow", "other"]


def test_a_call_keeps_the_tool_it_was_made_for() -> None:
    """A call is bound to the function that the agent had when the model called it."""
    agent = Agent(functions=[look])
    state = run_of(agent=agent)
    complete(state, wire_call(), wire_call("d", "missing"))
    agent.functions.clear()
    assert state.calls[0].tool is not None
    assert state.calls[1].tool is None

"""A forced tool choice holds until the first tool result, and each call keeps the tool it was made for."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm
from aswarm._run.state import RunState
from aswarm.testing import ScriptedModel, call
from tests.support.run.recording import (
    USER,
    WHOLE,
    asking,
    complete,
    finish,
    look,
    one_turn,
    other,
    run_of,
    slow,
    told,
    wire_call,
)

# --- forced tool choice -----------------------------------------------------------------------------------------------


def choice_of(state: RunState) -> object:
    """The tool_choice of the next request."""
    return state.request("I", WHOLE).body.get("tool_choice")


FORCES = ["required", "any", {"type": "function", "function": {"name": "look"}}]


@pytest.mark.parametrize("choice", FORCES)
def test_a_forced_choice_relaxes_after_the_first_tool_result(choice: Any) -> None:
    """A choice that forces a call holds until the agent has a tool result since the last user message, then it is "auto"."""
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


def forced(name: str = "A", **settings: Any) -> Agent:
    """An agent that must call a function."""
    return Agent(name=name, functions=[look], **(settings or {"tool_choice": "required"}))


def test_a_new_question_forces_again() -> None:
    """Results that came before the last user message were for another question."""
    history = [USER, asking(wire_call()), told("c"), USER]
    assert choice_of(run_of(*history, agent=forced())) == "required"
    assert choice_of(run_of(*history, asking(content="Hm."), agent=forced())) == "required"


@pytest.mark.parametrize("settings", [{"tool_choice": "required"}, {"model_settings": {"tool_choice": "required"}}])
@pytest.mark.parametrize("sender", [{}, {"sender": None}, {"sender": "A"}, {"sender": ["odd"]}])
def test_a_result_of_another_run_relaxes(settings: dict[str, Any], sender: dict[str, Any]) -> None:
    """A history that ends with a result of the agent's call: the agent would otherwise book a second time."""
    history = [USER, asking(wire_call()) | sender, told("c")]
    assert choice_of(run_of(*history, agent=forced(**settings))) == "auto"
    assert choice_of(run_of(*history[1:], agent=forced(**settings))) == "auto"


def test_a_result_of_another_run_relaxes_until_the_next_question() -> None:
    """Messages of other roles come between the result and the request: only a user message forces again."""
    history = [USER, asking(wire_call()), told("c"), asking(content="Hm."), {"role": "system", "content": "Hurry."}]
    assert choice_of(run_of(*history, agent=forced())) == "auto"
    assert choice_of(run_of(*history, USER, agent=forced())) == "required"


def test_the_result_of_another_agent_relaxes_nothing() -> None:
    """The sender of the message with the call says whose result it is."""
    history = [USER, {**asking(wire_call()), "sender": "B"}, told("c")]
    assert choice_of(run_of(*history, agent=forced())) == "required"
    assert choice_of(run_of(*history, agent=forced("B"))) == "auto"


@pytest.mark.parametrize(
    "history",
    [
        [USER, asking(wire_call()), {"role": "assistant", "content": "Hm."}],
        [USER, asking(wire_call()), told("another"), asking(content="Hm.")],
        [USER, told("c")],
        [told("c")],
        [],
    ],
    ids=["no answer", "an answer to another call", "no call", "only an answer", "nothing"],
)
def test_what_is_no_result_relaxes_nothing(history: list[Any]) -> None:
    """Only a call and its answer count."""
    assert choice_of(RunState(forced(), history, None)) == "required"


def test_the_agent_after_a_handoff_has_its_results_of_before() -> None:
    """A handoff leads to an agent that has its result since the last user message, made by another run."""
    booking, triage = forced("Booking"), forced("Triage")
    history = [USER, {**asking(wire_call()), "sender": "Booking"}, told("c")]
    state = run_of(*history, agent=triage)
    assert choice_of(state) == "required"
    one_turn(state, booking)
    assert choice_of(state) == "auto"


@pytest.mark.asyncio
async def test_a_run_that_was_cut_after_its_forced_call_does_not_call_again() -> None:
    """`max_turns=1`, and the history again: the second run asks for an answer and not for a second booking."""
    model = ScriptedModel([call("look"), "Booked."])
    swarm, agent = AsyncSwarm(model.client()), forced()
    first = await swarm.run(agent, [USER], max_turns=1)
    assert (await swarm.run(agent, [USER, *first.messages])).text == "Booked."
    assert [request.body["tool_choice"] for request in model.requests] == ["required", "auto"]


@pytest.mark.parametrize("answered", [True, False])
def test_a_call_that_is_resumed_in_part_relaxes(answered: bool) -> None:
    """One of two calls has its answer in the history, the other one runs now: both are results of the agent."""
    asked = asking(wire_call("c"), wire_call("d"))
    state = run_of(USER, asked, *([told("c")] if answered else []), agent=forced(), resume=True)
    for waiting in state.turn.calls:
        finish(waiting)
    state.end_turn()
    assert choice_of(state) == "auto"


def test_a_resumed_call_relaxes() -> None:
    """The result of a call that this run has resumed is a result of this run."""
    state = run_of(USER, asking(wire_call()), agent=Agent(functions=[look], tool_choice="required"), resume=True)
    finish(state.turn.calls[0])
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
    assert state.turn.calls[0].tool is not None
    assert state.turn.calls[1].tool is None

"""Budgets of repeated calls and of handoffs: a run that does nothing new is stopped."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import Agent, AsyncSwarm, Budget, Result, tool
from aswarm.testing import ScriptedModel, call, check_history
from tests.support.run.budget_shop import USER, Shop
from tests.support.run.one_turn import contents

# --- repeats ----------------------------------------------------------------------------------------------------------


async def test_the_same_call_with_the_same_result() -> None:
    """After three times the call is refused, after six attempts the run stops; white space is no difference."""
    steps = [call("look", '{"at": 1}'), call("look", '{ "at":1 }')] * 4
    shop = Shop(*steps)
    response = await shop.run(Budget(repeats=3))
    refused = "not run: this call was made 3 times with this result: 'seen 1'"
    assert contents(response) == ["seen 1"] * 3 + [refused] * 3
    assert (shop.ran, response.spent) == ([1, 1, 1], "repeats")


@pytest.mark.parametrize(
    ("limit", "steps", "ran"),
    [
        (2, [[call("look")] * 5, call("look"), "I see."], 5),
        (2, [call("look"), call("look"), [call("look"), call("look")], "I see."], 2),
        (1, [call("look"), call("look"), "I see."], 1),
    ],
    ids=["in one turn", "twice in a turn", "once"],
)
async def test_the_model_reads_a_refusal_before_the_run_ends(limit: int, steps: list[Any], ran: int) -> None:
    """Only a refused call of a later turn ends the run, however many calls of one turn were refused."""
    shop = Shop(*steps)
    response = await shop.run(Budget(repeats=limit))
    assert (response.stop, response.text, len(shop.ran)) == ("answer", "I see.", ran)


async def test_a_function_that_polls_is_not_counted() -> None:
    """A function with `polls=True` may return the same result any number of times; other calls beside it still repeat."""
    shop = Shop(*[call("wait_for_it")] * 5, "Done.")

    @tool(polls=True)
    async def wait_for_it() -> str:
        return "pending"

    shop.agent.functions.append(wait_for_it)
    assert (await shop.run(Budget(repeats=2))).text == "Done."
    shop.model = ScriptedModel([call("wait_for_it"), call("look")] * 9)
    shop.swarm = AsyncSwarm(shop.model.client())
    assert (await shop.run(Budget(repeats=2))).spent == "repeats"


@pytest.mark.parametrize(
    ("arguments", "limit", "requests"),
    [
        (["[]"], 1, 3),
        (["{"], 2, 4),
        (['{"a": 1, "b": 2}', '{"b": 2, "a": 1}'], 1, 3),
        (['{"at": 1}', '{"at": 2}'], 1, 6),
    ],
)
async def test_arguments_are_compared_as_json(arguments: list[str], limit: int, requests: int) -> None:
    """Errors repeat like results; the order of keys is no difference, and broken arguments are compared as text."""
    shop = Shop(*(call("look", each) for _ in range(9) for each in arguments))
    response = await shop.run(Budget(repeats=limit))
    assert (response.spent, response.usage.requests) == ("repeats", requests)


# --- handoffs ---------------------------------------------------------------------------------------------------------


def pair(*, as_functions: bool = False) -> Agent:
    """Return an agent A that can hand off to B and back; B has a function."""
    a, b = Agent(name="A"), Agent(name="B")

    async def work() -> str:
        return "worked"

    def transfer_to_a() -> Result:
        return Result(value="to A", agent=a, context_variables={"seen": True})

    a.functions = [b]
    b.functions = [transfer_to_a if as_functions else a, work]
    return a


BACK_AND_FORTH = [call("transfer_to_b"), call("transfer_to_a")] * 9


@pytest.mark.parametrize("as_functions", [False, True])
async def test_handing_back_and_forth(as_functions: bool) -> None:
    """One handoff back is allowed, the next one is refused, and another one stops the run."""
    model = ScriptedModel([*BACK_AND_FORTH[:3], *[call("transfer_to_b")] * 2])
    agent = pair(as_functions=as_functions)
    swarm = AsyncSwarm(model.client())
    response = await swarm.run(agent, "Go", budget=Budget(handoffs=1))
    texts = contents(response)
    refused = (
        "not handed over to B: the conversation was handed back once with nothing done in between; answer the user, or "
        "call another function"
    )
    assert (texts[2], response.agent.name, response.spent) == (refused, "A", "handoffs")
    assert len(model.requests) == 4
    check_history([USER, *response.messages])


async def test_a_refused_handoff_keeps_the_context() -> None:
    """A function whose handoff is refused has run, and its changes of the context stay."""
    response = await AsyncSwarm(ScriptedModel([*BACK_AND_FORTH[:2], "Fine."]).client()).run(
        pair(as_functions=True), "Go", budget=Budget(handoffs=0)
    )
    assert (response.agent.name, response.context_variables, response.text) == ("B", {"seen": True}, "Fine.")


async def test_work_between_handoffs_allows_them_again() -> None:
    """A conversation that does something between its handoffs is in no circle."""
    steps = [call("transfer_to_b"), call("work"), call("transfer_to_a")]
    response = await AsyncSwarm(ScriptedModel([*steps * 3, "Done."]).client()).run(
        pair(), "Go", budget=Budget(handoffs=1)
    )
    assert response.text == "Done."


async def test_a_chain_of_agents_is_no_circle() -> None:
    """A handoff to an agent that was not active before is not counted."""
    last = Agent(name="C")
    model = ScriptedModel([call("transfer_to_b"), call("transfer_to_c"), "Hi."])
    agent = Agent(name="A", functions=[Agent(name="B", functions=[last])])
    response = await AsyncSwarm(model.client()).run(agent, "Go", budget=Budget(handoffs=0))
    assert (response.text, response.agent.name) == ("Hi.", "C")

"""Budgets: limits of calls, turns and tokens, and the end of a run at a limit."""

from __future__ import annotations

from typing import Any

import pytest

from aswarm import (
    Agent,
    AsyncSwarm,
    Budget,
    BudgetError,
    ConfigurationError,
    Response,
    ToolCallFinished,
    ToolCallStarted,
    tool,
)
from aswarm.testing import ScriptedAnswer, ScriptedModel, call
from tests.support.run.budget_shop import USER, Shop, looks
from tests.support.run.one_turn import contents
from tests.support.run.ways_to_run import consume

USAGE = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}


# --- calls ------------------------------------------------------------------------------------------------------------


def refused(limit: str) -> str:
    return f"not run: the budget of {limit} is used up"


@pytest.mark.parametrize(
    ("limit", "turns", "texts"),
    [
        (3, [looks(0, 1, 2, 3, 4)], ["seen 0", "seen 1", "seen 2", *[refused("3 tool calls")] * 2]),
        (3, [looks(0, 1), looks(2, 3)], ["seen 0", "seen 1", "seen 2", refused("3 tool calls")]),
        (0, [looks(0)], [refused("0 tool calls")]),
        (1, [looks(0, 1)], ["seen 0", refused("1 tool call")]),
    ],
)
async def test_the_first_calls_run_and_the_others_are_refused(limit: int, turns: list[Any], texts: list[str]) -> None:
    """The calls of all turns count together, and the run stops before the request after a refused call."""
    shop = Shop(*turns)
    response = await shop.run(Budget(tool_calls=limit))
    assert (contents(response), sorted(shop.ran)) == (texts, [*range(limit)])
    assert (response.stop, response.spent, len(shop.model.requests)) == ("budget", "tool_calls", len(turns))


async def test_refused_calls_are_events_too() -> None:
    """A refused call has a ToolCallFinished, and no ToolCallStarted."""
    shop = Shop(looks(0, 1))
    async with shop.swarm.stream(shop.agent, "Go", budget=Budget(tool_calls=1)) as run:
        events = [event async for event in run if isinstance(event, ToolCallStarted | ToolCallFinished)]
    assert [(type(event), event.index) for event in events if event.index == 1] == [(ToolCallFinished, 1)]
    assert run.response.stop == "budget"


async def test_calls_that_are_not_run_here_stay_open() -> None:
    """With execute_tools=False the budget answers no call."""
    shop = Shop(looks(0, 1))
    response = await shop.run(Budget(tool_calls=0), execute_tools=False)
    assert (response.stop, contents(response), len(response.open_calls)) == ("tool_calls", [], 2)


async def test_a_resumed_call_counts_and_a_denied_one_does_not() -> None:
    """A call that the user denies takes no place of the limit."""
    shop = Shop(looks(0, 1, 2), "Done.")
    history = [USER, *(await shop.run(execute_tools=False)).messages]
    ids = [each["id"] for each in history[-1]["tool_calls"]]
    response = await shop.run(Budget(tool_calls=1), history, resume={ids[0]: False, ids[1]: True, ids[2]: True})
    assert shop.ran == [1]
    assert contents(response)[2] == refused("1 tool call")


async def test_calls_that_need_an_approval_are_counted_once_it_is_given() -> None:
    """A call that waits for its approval is not counted; with the approval it is, in call order."""
    shop = Shop([call("pay", call_id="a"), call("look", call_id="l"), call("pay", call_id="b")], "Done.")

    @tool(approve=True)
    def pay() -> str:
        shop.ran.append("pay")
        return "paid"

    shop.agent.functions.append(pay)
    first = await shop.run(Budget(tool_calls=1))
    assert ([each.id for each in first.open_calls], shop.ran) == (["a", "l", "b"], [])
    history = [USER, *first.messages]
    second = await shop.run(Budget(tool_calls=2), history, resume={"a": True, "l": True, "b": True})
    assert shop.ran == ["pay", 0]
    assert contents(second) == ["paid", "seen 0", refused("2 tool calls")]


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("usage", [USAGE, {"prompt_tokens": 60, "completion_tokens": 40}], ids=["total", "no total"])
async def test_tokens(usage: Any) -> None:
    """A request is made as long as fewer tokens were used; input and output are added up if the provider does not."""
    for limit, requests in ((250, 3), (100, 1)):
        shop = Shop(*(ScriptedAnswer(calls=looks(place), usage=usage) for place in range(9)))
        response = await shop.run(Budget(tokens=limit))
        assert (response.spent, response.usage.requests) == ("tokens", requests)


async def test_tokens_that_no_provider_reports_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """One warning names the run whose limit of tokens cannot hold."""
    steps = [ScriptedAnswer(calls=looks(place), usage=None) for place in range(3)]
    shop = Shop(*steps, "Done.")
    response = await shop.run(Budget(tokens=100))
    warnings = [each for each in caplog.records if "reported no token count for a completion" in each.getMessage()]
    assert (response.stop, len(warnings)) == ("answer", 1)
    assert warnings[0].run_id == response.run_id  # type: ignore[attr-defined]


async def test_nothing_changes_without_a_limit() -> None:
    """An empty budget is no limit, and has priority over the budget of the swarm."""
    shop = Shop(looks(0), "Done.", looks(0), budget=Budget(turns=1))
    assert (await shop.run(Budget())).text == "Done."
    assert (await shop.run()).spent == "turns"


# --- then -------------------------------------------------------------------------------------------------------------


async def test_then_raise() -> None:
    """BudgetError has the valid partial response, which names the limit."""
    shop = Shop(looks(0), looks(1))
    with pytest.raises(BudgetError, match="the budget of 1 turn is used up") as caught:
        await shop.run(Budget(turns=1, then="raise"))
    response = caught.value.response
    assert response is not None
    assert (response.stop, response.spent, contents(response)) == ("error", "turns", ["seen 0"])


async def test_then_answer() -> None:
    """The last request has the tools, and the tool_choice "none"."""
    shop = Shop(looks(0, 1), "I found 0.")
    response = await shop.run(Budget(tool_calls=1, turns=1, then="answer"))
    assert (response.stop, response.spent, response.text) == ("budget", "tool_calls", "I found 0.")
    body = shop.model.requests[-1].body
    assert (body["tool_choice"], len(body["tools"])) == ("none", 2)


@pytest.mark.parametrize("face", ["run", "stream"])
async def test_then_answer_over_the_responses_api(face: str) -> None:
    """The last request has the same choice in the form of that API."""
    model, left = ScriptedModel([looks(0), "I found 0."], api="responses"), list[Response]()
    swarm = AsyncSwarm(model.client(), api="responses")
    await consume(swarm, Shop().agent, face, left, budget=Budget(turns=1, tokens=15, then="answer"))
    body = model.requests[-1].body
    assert (left[0].text, body["tool_choice"], len(body["tools"])) == ("I found 0.", "none", 2)


async def test_calls_in_the_last_completion_are_refused() -> None:
    """A server may ignore tool_choice: nothing runs, and no further request is made."""
    shop = Shop(looks(0), looks(1))
    response = await shop.run(Budget(turns=1, then="answer"))
    assert (shop.ran, contents(response)[1]) == ([0], refused("1 turn"))
    assert (response.stop, len(shop.model.requests)) == ("budget", 2)


@pytest.mark.parametrize("forced", [{"tool_choice": "required"}, {"model_settings": {"tool_choice": "required"}}])
async def test_a_forced_choice_does_not_survive_the_last_completion(forced: Any) -> None:
    """The tool_choice of the agent or of its settings is replaced."""
    shop = Shop(looks(0), "Done.")
    shop.agent = Agent(name="A", functions=shop.agent.functions, **forced)
    await shop.run(Budget(turns=1, then="answer"))
    assert [request.body["tool_choice"] for request in shop.model.requests] == ["required", "none"]


# --- bad input --------------------------------------------------------------------------------------------------------


async def test_a_value_that_is_no_budget() -> None:
    """A dict or a number is an error, for a run and for a swarm."""
    shop = Shop("Hi")
    for wrong in ({"turns": 1}, 3):
        with pytest.raises(ConfigurationError, match="budget must be a Budget"):
            await shop.swarm.run(shop.agent, "Go", budget=wrong)  # type: ignore[call-overload]
        with pytest.raises(ConfigurationError, match="budget must be a Budget"):
            AsyncSwarm(shop.model.client(), budget=wrong)  # type: ignore[arg-type]


async def test_the_error_names_the_cost() -> None:
    """The error of a limit in dollars names the limit."""
    shop = Shop(call("look"), "Done.")
    budget = Budget(cost=0.01, prices={"gpt-6-luna": (1000.0, 1000.0)}, then="raise")
    with pytest.raises(BudgetError, match=r"the budget of \$0.01 is used up"):
        await shop.run(budget)

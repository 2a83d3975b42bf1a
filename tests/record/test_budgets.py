"""Budgets and the journal: a rerun counts what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from aswarm import Agent, AsyncSwarm, Budget, BudgetError
from aswarm.testing import ScriptedModel, call
from tests.support.record.journaled import Died, Script, calls, dies, noting, rerun
from tests.support.run.one_turn import contents

REFUSED = "not run: the budget of 2 tool calls is used up"


@pytest.mark.parametrize("then", ["stop", "answer"])
async def test_recorded_calls_count(path: Path, then: str) -> None:
    """Two calls ran before the process died, so no call runs after it."""
    notes: list[str] = []
    agent, budget = Agent(functions=[noting(notes, "one")]), Budget(tool_calls=2, then=then)  # type: ignore[arg-type]
    with pytest.raises(Died):
        await rerun(path, Script(calls("one", "one"), dies()), agent, budget=budget)
    answer = {"role": "assistant", "content": "Found."}
    response = await rerun(path, Script(calls("one"), answer), agent, budget=budget)
    assert (notes, contents(response)) == (["one", "one"], ["done", "done", REFUSED])
    assert (response.stop, response.text) == ("budget", "Found." if then == "answer" else "")


async def test_recorded_completions_count(path: Path) -> None:
    """Their tokens are in the record: no request is sent above the limit."""
    agent, budget = Agent(functions=[noting([], "one")]), Budget(tokens=45)
    with pytest.raises(Died):
        await rerun(path, Script(calls("one"), calls("one"), dies()), agent, budget=budget)
    model = Script(calls("one"))
    response = await rerun(path, model, agent, budget=budget)
    assert (len(model.asked), response.spent, response.usage.total_tokens) == (1, "tokens", 45)


async def test_each_item_of_a_batch_has_a_budget_of_its_own() -> None:
    """`then="raise"` makes the outcome a failed one, with the partial response."""

    async def look() -> str:
        return "seen"

    model = ScriptedModel(lambda request: [call("look"), call("look")])
    swarm, agent = AsyncSwarm(model.client()), Agent(functions=[look])
    async with swarm.batch(agent, ["a", "b"], budget=Budget(tool_calls=3)) as outcomes:
        found = [outcome.response async for outcome in outcomes]
    assert [(each.spent, each.usage.requests) for each in found if each] == [("tool_calls", 2)] * 2
    async with swarm.batch(agent, ["a"], budget=Budget(turns=1, then="raise")) as outcomes:
        errors = [outcome.error async for outcome in outcomes]
    assert isinstance(errors[0], BudgetError)
    assert errors[0].response is not None
    assert errors[0].response.spent == "turns"

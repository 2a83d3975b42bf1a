"""Properties of budgets: nothing is admitted above a limit, and `spent` names a limit that was reached."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from aswarm import Agent, AsyncSwarm, Budget, CompletionRequest, Usage
from aswarm._run.budget_control import BudgetControl, Repetition
from aswarm._run.call import Call, TurnCalls
from aswarm._run.outcome import ToolOutcome
from aswarm._run.spending import Spending
from aswarm.testing import check_history

AGENT = Agent(name="A")
counts = st.none() | st.integers(1, 5)
budgets = st.builds(
    Budget,
    turns=counts,
    tokens=st.none() | st.integers(1, 300),
    tool_calls=st.none() | st.integers(0, 6),
    repeats=counts,
    then=st.sampled_from(["stop", "answer"]),
)
# A turn: how many tokens its completion took, and its calls as pairs of argument and result.
tokens = st.integers(0, 120)
calls = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=4)
turns = st.lists(st.tuples(tokens, calls))


def call_of(argument: int, position: int = 0) -> Call:
    """A call of one function."""
    function = {"name": "look", "arguments": json.dumps({"at": argument})}
    return Call({"id": f"call_{position}", "type": "function", "function": function}, position, AGENT, None)


class Simulated:
    """Runs that share budgets, without a model: what was asked and what ran."""

    def __init__(self, spending: Spending) -> None:
        self.control = BudgetControl(spending, AGENT)
        self.spending = spending
        self.requests = 0
        self.ran = 0

    def turn(self, used: int, asked: list[tuple[int, int]]) -> bool:
        """One turn. False once the budget lets the run ask for nothing more."""
        if not self.control.admit_request(may_ask=True):
            return False
        self.requests += 1
        self.spending.add(Usage(used, 0, used, 1))
        made = TurnCalls(call_of(argument, position) for position, (argument, _) in enumerate(asked))
        self.control.admit_calls(made)
        for each, (_, result) in zip(made, asked, strict=True):
            if each.outcome is None:
                self.ran += 1
                each.finish(ToolOutcome(str(result)))
        self.control.end_turn(made, AGENT, None)
        return True


def check(budget: Budget | None, requests: int, ran: int, tokens_before_last: int, extra: int) -> None:
    """Nothing above the limits; `extra`: the last completions of `then="answer"`."""
    if budget is None:
        return
    assert budget.turns is None or requests <= budget.turns + extra
    assert budget.tool_calls is None or ran <= budget.tool_calls
    assert budget.tokens is None or tokens_before_last < budget.tokens or not requests or extra


@given(budgets, turns)
def test_a_run_stays_within_its_budget(budget: Budget, script: list[tuple[int, list[tuple[int, int]]]]) -> None:
    """Never more calls than the limit, never a request after it, and `spent` names a limit that there is."""
    spending = Spending(budget)
    run = Simulated(spending)
    before = 0
    for used_now, asked in script:
        used = spending.usage.total_tokens
        if not run.turn(used_now, asked):
            break
        before = used
    check(budget, run.requests, run.ran, before, int(run.control.is_last))
    if run.control.is_last:
        assert budget.then == "answer"
        assert run.control.spent
    if run.control.spent in ("turns", "tokens"):
        used = {"turns": run.requests, "tokens": spending.usage.total_tokens}
        assert used[run.control.spent] >= getattr(budget, run.control.spent)
    elif run.control.spent is not None:
        assert getattr(budget, run.control.spent) is not None
    if run.requests < len(script):
        assert run.control.spent is not None


@given(budgets, st.none() | budgets, st.lists(st.tuples(st.integers(0, 1), tokens, calls)))
def test_runs_that_share_a_budget_stay_within_it_together(
    outer: Budget, inner: Budget | None, script: list[Any]
) -> None:
    """Two runs inside one tool, in any order of their turns, and each with a budget of its own."""
    around = Spending(outer)
    runs = [Simulated(Spending(inner, around)) for _ in range(2)]
    for which, used, asked in script:
        runs[which].turn(used, asked)
    extra = sum(run.control.is_last for run in runs)
    requests, ran = sum(run.requests for run in runs), sum(run.ran for run in runs)
    assert around.usage.total_tokens == sum(run.spending.usage.total_tokens for run in runs)
    assert outer.turns is None or requests <= outer.turns + extra
    assert outer.tool_calls is None or ran <= outer.tool_calls
    for run in runs:
        check(inner, run.requests, run.ran, 0, int(run.control.is_last))


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), max_size=30))
def test_no_call_repeats_more_often_than_it_may(limit: int, script: list[tuple[int, int]]) -> None:
    """Between two new results no call has the same one more than `limit` times, beyond the first time each."""
    repetition = Repetition(limit)
    last: dict[int, int] = {}
    since_new: dict[int, int] = {}
    for argument, result in script:
        call = call_of(argument)
        if repetition.refusal(call) is not None:
            assert since_new[argument] == limit
            continue
        repetition.add(call, str(result))
        if last.get(argument) == result:
            since_new[argument] = since_new.get(argument, 0) + 1
        else:
            since_new = {argument: 1}
        last[argument] = result
        assert since_new[argument] <= limit


class Source:
    """Asks for the calls of the script, turn by turn, and then answers."""

    def __init__(self, script: list[list[tuple[int, int]]]) -> None:
        self.script = script
        self.requests = 0

    async def complete(self, request: CompletionRequest) -> AsyncGenerator[Mapping[str, Any], None]:
        """One whole completion of 10 tokens."""
        self.requests += 1
        asked = self.script[self.requests - 1] if self.requests <= len(self.script) else []
        made = [
            {
                "id": f"call_{self.requests}_{position}",
                "type": "function",
                "function": {"name": "look", "arguments": json.dumps({"at": argument, "result": result})},
            }
            for position, (argument, result) in enumerate(asked)
        ]
        message = {"role": "assistant", "content": None if made else "Done.", "tool_calls": made or None}
        usage = {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}
        yield {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


@given(budgets, st.lists(calls.filter(bool), max_size=8))
def test_whole_runs_stay_within_their_budget(budget: Budget, script: list[list[tuple[int, int]]]) -> None:
    """The same of a run with its loop: each call is answered, and the history is valid."""
    source, ran = Source(script), list[int]()

    async def look(at: int, result: int) -> str:
        ran.append(at)
        return str(result)

    response = anyio.run(functools.partial(AsyncSwarm(source).run, Agent(functions=[look]), "Go", budget=budget))
    check_history([{"role": "user", "content": "Go"}, *response.messages])
    is_last = response.stop == "budget" and budget.then == "answer"
    assert source.requests == response.usage.requests
    assert budget.turns is None or source.requests <= budget.turns + is_last
    assert budget.tokens is None or 10 * (source.requests - is_last - 1) < budget.tokens
    assert budget.tool_calls is None or len(ran) <= budget.tool_calls
    assert (response.stop == "budget") == (response.spent is not None)
    assert response.spent is None or getattr(budget, response.spent) is not None
    if response.stop == "answer":
        assert source.requests == len(script) + 1

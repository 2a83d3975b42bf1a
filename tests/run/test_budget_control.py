"""What a budget decides, as plain functions: who is asked first, what counts, and what tells calls apart."""

from __future__ import annotations

from aswarm import Agent, Budget
from aswarm._run.budget_control import BudgetControl, HandoffChain, Repetition
from aswarm._run.call import ToolCall
from aswarm._run.spending import Spending

AGENT = Agent(name="A")


def call_of(arguments: str, agent: Agent = AGENT) -> ToolCall:
    """A call of one function."""
    message = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return ToolCall(message, 0, agent, None)


def test_the_limit_of_the_outer_run_comes_first() -> None:
    """Whatever `then` says in the inner run, which only stops: the outer one decides what follows."""
    for inner in (Budget(then="answer"), Budget(turns=1, then="answer"), Budget(turns=1, then="raise")):
        control = BudgetControl(Spending(inner, Spending(Budget(turns=1))), AGENT)
        assert control.admit_request(may_ask=True)
        assert not control.admit_request(may_ask=True)
        assert (control.spent, control.is_last) == ("turns", False)


def test_a_request_that_another_limit_refuses_is_not_counted() -> None:
    """An inner run that ends at its max_turns takes no turn from the outer one."""
    outer = Spending(Budget(turns=2))
    control = BudgetControl(Spending(None, outer), AGENT)
    assert control.admit_request(may_ask=False)
    assert outer.turns == 0


def test_arguments_are_compared_as_json() -> None:
    """The order of keys is no difference; another agent may have another function of the name."""
    repetition = Repetition(1)
    repetition.add(call_of('{"a": 1, "b": 2}'), "seen")
    assert repetition.refusal(call_of('{"b": 2, "a": 1}')) is not None
    assert repetition.refusal(call_of('{"a": 1, "b": 3}')) is None
    assert repetition.refusal(call_of('{"a": 1, "b": 2}', Agent(name="B"))) is None


def test_work_makes_agents_forget_what_was_refused() -> None:
    """The next circle is told again before the run ends."""
    chain = HandoffChain(0, "A")
    assert not chain.add_refused()
    chain.end("A")
    assert not chain.add_refused()
    assert chain.add_refused()

"""Handoffs that the source shows, without a call."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from aswarm import Agent, Result, tool
from tests.support.graph.graphs import handoffs_of

sales = Agent(name="Sales")
refunds = Agent(name="Refunds")
DAY = 86400
DONE = Result(value="done", agent=sales)


def calls_nothing(*_: Any) -> Any:
    raise AssertionError("the graph called a function")


def to_sales():
    """Sales."""
    calls_nothing()
    return sales


def with_result(reason: str) -> Result:
    return Result(value=reason, agent=refunds)


async def async_either(is_refund: bool):
    if is_refund:
        return refunds
    return Result(agent=sales)


def conditional(is_refund: bool):
    return refunds if is_refund else sales


def by_or(text: str):
    return None or refunds


def through_locals(is_refund: bool):
    agent: Agent = sales
    if is_refund:
        agent = refunds
    answer = result = Result(value="x", agent=agent)
    print(answer)
    return result


def by_walrus():
    return (chosen := sales) and chosen


def itself():
    again = sales
    again = again
    return again  # noqa: RET504 - a name that is assigned to itself


def constant_result():
    return DONE


def with_default(agent: Any = sales):
    return agent


def handing(agent, note: str = ""):
    return agent


def wrapped(function):
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


@wrapped
def decorated():
    return sales


@tool(name="named", timeout=3)
def made_a_tool():
    return sales


class Shop:
    agent = sales

    def __init__(self) -> None:
        self.other = refunds

    def method(self):
        return self.other

    def of_the_class(self):
        return self.agent

    @tool
    def a_tool(self):
        return self.other

    @classmethod
    def of_all(cls):
        return cls.agent

    @staticmethod
    def plain():
        return sales

    def __call__(self):
        return self.other


class Slotted:
    __slots__ = ("agent",)

    def __init__(self) -> None:
        self.agent = sales

    def method(self):
        return self.agent


shop = Shop()

SEEN: list[tuple[Any, list[tuple[str, str]]]] = [
    (sales, [("transfer_to_sales", "Sales")]),
    (to_sales, [("to_sales", "Sales")]),
    (with_result, [("with_result", "Refunds")]),
    (async_either, [("async_either", "Refunds"), ("async_either", "Sales")]),
    (conditional, [("conditional", "Refunds"), ("conditional", "Sales")]),
    (by_or, [("by_or", "Refunds")]),
    (through_locals, [("through_locals", "Sales"), ("through_locals", "Refunds")]),
    (by_walrus, [("by_walrus", "Sales")]),
    (itself, [("itself", "Sales")]),
    (constant_result, [("constant_result", "Sales")]),
    (with_default, [("with_default", "Sales")]),
    (functools.partial(handing, sales), [("handing", "Sales")]),
    (functools.partial(functools.partial(handing, agent=sales), note="x"), [("handing", "Sales")]),
    (decorated, [("decorated", "Sales")]),
    (made_a_tool, [("named", "Sales")]),
    (shop.method, [("method", "Refunds")]),
    (shop.of_the_class, [("of_the_class", "Sales")]),
    (shop.a_tool, [("a_tool", "Refunds")]),
    (Shop.of_all, [("of_all", "Sales")]),
    (shop.plain, [("plain", "Sales")]),
    (shop, [("Shop", "Refunds")]),
    (Slotted().method, [("method", "Sales")]),
    (tool(name="short")(lambda: sales), [("short", "Sales")]),
    (functools.partial(tool(name="short")(lambda: sales)), [("short", "Sales")]),
    (tool(name="short")(lambda a=refunds: a), [("short", "Refunds")]),
]


@pytest.mark.parametrize(("function", "expected"), SEEN)
def test_a_returned_agent_is_a_certain_handoff(function: Any, expected: list[tuple[str, str]]) -> None:
    """A handoff that the source shows is certain, and no other one is guessed."""
    assert handoffs_of(function) == (expected, [])


def test_lambdas_on_one_line_are_distinguished() -> None:
    """Each lambda has its own body, also one inside another."""
    one, two = tool(name="one")(lambda: sales), tool(name="two")(lambda: refunds)
    inner = tool(name="inner")((lambda agent: (lambda: agent))(sales))  # fmt: skip
    assert handoffs_of(one, two, inner) == ([("one", "Sales"), ("two", "Refunds"), ("inner", "Sales")], [])


def test_closures_of_a_factory_are_distinguished() -> None:
    """Two functions with one source may return different agents."""

    def transfer_to(agent: Agent) -> Any:
        def transfer() -> Agent:
            return agent

        return tool(name=f"to_{agent.name}")(transfer)

    assert handoffs_of(transfer_to(sales), transfer_to(refunds)) == (
        [("to_Sales", "Sales"), ("to_Refunds", "Refunds")],
        [],
    )


def no_handoffs() -> list[Any]:
    """Functions that refer to an agent, and whose source or annotation shows that they return something else."""

    def text(order: int) -> str:
        print(sales.name)
        return str(order) + sales.name

    def unannotated(order: int):
        print(sales)
        if order:
            return [sales]
        if order == 2:
            return None
        return f"{sales.name}"

    def only_context() -> Result:
        print(sales)
        return Result(context_variables={"agent": sales.name})

    def constant(order: int):
        return sales.name if order else DAY

    def no_return(order: int):
        sales.name.upper()

    def of_another_class(order: int):
        return Shop(), text(order)

    def made(order: int):
        text(1)
        print(sales)
        return int(order)

    def text_of_helper(order: int):
        print(sales)
        return text(order)

    def inner_only(order: int):
        def inner():
            return sales

        return inner is not None

    return [text, unannotated, only_context, constant, no_return, of_another_class, made, text_of_helper, inner_only]


@pytest.mark.parametrize("function", no_handoffs(), ids=lambda function: function.__name__)
def test_naming_an_agent_is_no_handoff(function: Any) -> None:
    """Where the source or the annotation excludes a handoff, there is no edge."""
    assert handoffs_of(function) == ([], [])

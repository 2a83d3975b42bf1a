"""Possible handoffs, which only a call would show: they are drawn as "maybe"."""

from __future__ import annotations

import functools
import types
from typing import Any, Union

import pytest

from aswarm import Agent, Result
from tests.support.graph.graphs import handoffs_of

sales = Agent(name="Sales")
refunds = Agent(name="Refunds")
AGENTS = {"sales": sales, "nested": [("x", refunds)]}


def from_dict(name: str):
    return AGENTS[name]


def from_get(name: str) -> Agent | None:
    return AGENTS.get(name)


def through_helper(name: str):
    return helper(name)


def helper(name: str):
    return from_dict(name)


def by_loop(name: str):
    for agent in (sales, refunds):
        if agent.name == name:
            return agent
    return None


def unpacked(name: str):
    agent, _ = sales, name
    return agent


def inside(name: str):
    def inner():
        return sales

    return inner()


def with_fields(name: str):
    fields: dict[str, Any] = {"agent": sales}
    return Result(**fields)


async def awaited(name: str) -> Any:
    return await anything(name, sales)


async def anything(*args: Any) -> Any:
    return args


def counted(name: str):
    agent: Any = sales
    agent += name
    return agent


def by_called_item(name: str):
    return {"x": lambda: refunds}[name]()


def by_itself(name: str):
    return by_itself(refunds.name)


class Shop:
    def __init__(self) -> None:
        self.agents = {"sales": sales}
        self.log = functools.partial(print)

    @property
    def current(self):
        raise AssertionError("the graph called a property")

    @functools.cached_property
    def cached(self):
        return self.agents["sales"]

    def by_name(self, name: str):
        return self.agents[name]

    def by_helper(self, name: str):
        return self.by_name(name)

    def by_cached(self):
        return self.cached

    def by_property(self):
        print(refunds)
        return self.current

    @classmethod
    def of_all(cls):
        return refunds

    @staticmethod
    def plain():
        return sales

    def by_its_class(self, name: str):
        return self.of_all() if name else self.plain()


class Slotted:
    __slots__ = ("agents", "empty")

    def __init__(self) -> None:
        self.agents = AGENTS

    def by_name(self, name: str):
        return self.agents[name]

    def by_empty_slot(self, name: str):
        print(self.agents)
        return self.empty


def of_a_slotted_class(name: str):
    return Slotted().agents and AGENTS[name]


registry = types.SimpleNamespace(shop=Shop(), agents=AGENTS)
graphs_module = types.ModuleType("graphs_module")
graphs_module.held = [refunds]


def from_registry(name: str):
    return registry.agents[name]


def from_module(name: str):
    return graphs_module.held[0]


def from_shop(shop: Shop, name: str):
    return shop.by_name(name)


MAYBE: list[tuple[Any, list[str]]] = [
    (from_dict, ["Sales", "Refunds"]),
    (from_get, ["Sales", "Refunds"]),
    (through_helper, ["Sales", "Refunds"]),
    (by_loop, ["Sales", "Refunds"]),
    (unpacked, ["Sales"]),
    (inside, ["Sales"]),
    (with_fields, ["Sales"]),
    (awaited, ["Sales"]),
    (counted, []),
    (Shop().by_name, ["Sales"]),
    (Shop().by_helper, ["Sales"]),
    (Shop().by_cached, ["Sales"]),
    (Shop().by_property, ["Refunds"]),
    (Shop().by_its_class, ["Refunds", "Sales"]),
    (Slotted().by_name, ["Sales", "Refunds"]),
    (Slotted().by_empty_slot, ["Sales", "Refunds"]),
    (of_a_slotted_class, ["Sales", "Refunds"]),
    (by_called_item, ["Refunds"]),
    (by_itself, ["Refunds"]),
    (from_registry, ["Sales", "Refunds"]),
    (from_module, ["Refunds"]),
    (functools.partial(from_shop, Shop()), ["Sales"]),
]


@pytest.mark.parametrize(("function", "expected"), MAYBE)
def test_an_agent_that_is_only_referred_to_is_possible(function: Any, expected: list[str]) -> None:
    """The agents that a function or its helpers refer to are possible targets."""
    _, found = handoffs_of(function)
    assert [target for _, target in found] == expected


def test_a_local_name_hides_a_global_one() -> None:
    """A local variable is not the global agent of the same name, and neither is an attribute."""

    def hiding(sales: str, text: str):
        return text.format(sales)

    def reporting(report: dict[str, Any]):
        return report.sales()

    assert handoffs_of(hiding, reporting) == ([], [])


def makes_one() -> Agent:
    return Agent(name="New")


def makes_unhinted():
    return Agent(name="New")


def by_factory() -> Agent:
    return makes_one()


async def by_annotation(name: str) -> Union[Result, str]:  # noqa: UP007 - both spellings are read
    return await anything(name)


def not_yet() -> Agent:
    return there_later  # noqa: F821


def by_result():
    return Result(agent=makes_one())


@pytest.mark.parametrize("function", [makes_one, makes_unhinted, by_factory, by_annotation, not_yet, by_result])
def test_an_agent_that_does_not_exist_is_a_question_mark(function: Any) -> None:
    """A function that makes an agent, or is annotated to return one that is not found, leads to "?"."""
    assert handoffs_of(function) == ([], [(function.__name__, "?")])


def test_a_closure_without_a_value_yet() -> None:
    """A name that gets its value later is not found, without an error."""

    def early() -> Agent:
        return later

    found = handoffs_of(early)
    later = sales
    assert found == ([], [("early", "?")])
    assert handoffs_of(early) == ([("early", "Sales")], [])


def test_classes_and_builtins_hand_off_to_no_agent() -> None:
    """A class makes an object and a builtin refers to no agents; neither hands off."""

    def largest(name: str):
        return max(name)

    assert handoffs_of(Shop, largest) == ([], [])


def test_a_wrapper_that_wraps_itself() -> None:
    """The search stops if `__wrapped__` is the function itself."""

    def transfer():
        return sales

    transfer.__wrapped__ = transfer  # type: ignore[attr-defined]

    def outer():
        return transfer()

    assert handoffs_of(outer) == ([], [("outer", "Sales")])


def test_arguments_that_do_not_fit() -> None:
    """The agents of a partial are found even if nobody could call it."""

    def transfer(*, agent: Any = None):
        return agent or sales

    broken = functools.partial(transfer, 1, 2)

    def outer():
        return broken()

    assert handoffs_of(outer) == ([], [("outer", "Sales")])


def test_large_data_is_not_searched_completely() -> None:
    """Only the first items of a large table are searched, and a container inside itself ends."""
    rows: list[Any] = [list(range(10))] * 1_000_000
    rows.append(rows)

    def search(query: str):
        return rows[0], rows.index(query)

    def pick(query: str):
        return rows.index(sales)

    assert handoffs_of(search) == ([], [])
    assert handoffs_of(pick) == ([], [("pick", "Sales")])


def test_a_certain_handoff_is_not_possible_too() -> None:
    """An agent that is returned and also referred to is drawn once."""

    def either(name: str):
        return refunds if name == "refunds" else AGENTS[name]

    assert handoffs_of(either) == ([("either", "Refunds")], [("either", "Sales")])

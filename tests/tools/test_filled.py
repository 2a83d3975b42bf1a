"""Parameters that the run fills: they are hidden from the model, and some functions are refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pytest

from aswarm import Agent, ConfigurationError, Resource, function_to_json, function_tool, tool
from aswarm._tools.filled import filled_parameters
from aswarm._tools.tool import as_tool, reads_context, runs_together, writes_context
from tests.support.run.typed_desk import Database, Seen, Shop, ShopItems, balance, collect, spend

if TYPE_CHECKING:
    from decimal import Decimal


@runtime_checkable
class Rows(Protocol):
    rows: list[str]


async def of_protocol(db: Resource[Rows]) -> str:
    """Read."""
    return db.rows[0]


def several(
    a: Resource[Database | None], b: Resource[list[str]], c: Resource[Callable[[], str]], d: Resource[Any] = None
) -> str:
    """Read."""
    return ""


def late(db: Resource[Decimal]) -> str:
    """Read."""
    return str(db)


class Customer:
    pass


def of_class(context_variables: Customer) -> str:
    """Read."""
    return ""


def by_arguments(arguments: dict[str, Any], shop: Shop, db: Resource[Database]) -> bool:
    return shop.points > 3


def test_the_model_sees_neither_a_context_nor_a_resource() -> None:
    assert function_to_json(collect)["function"]["parameters"]["properties"] == {"number": {"type": "integer"}}
    assert function_to_json(spend)["function"]["parameters"] == {"type": "object", "properties": {}, "required": []}


def test_what_the_model_sends_for_a_resource_is_dropped() -> None:
    made = as_tool(spend)
    assert made._schema.validate({"db": "x", "context_variables": {}}) == {}


def test_a_type_decides_whether_a_call_may_write() -> None:
    """A read-only type runs beside its neighbours, as a Mapping does."""
    assert (reads_context(as_tool(balance)), runs_together(as_tool(balance))) == (True, True)
    assert (writes_context(as_tool(spend)), runs_together(as_tool(spend))) == (True, False)


def test_a_resource_alone_does_not_make_a_call_run_alone() -> None:
    assert runs_together(as_tool(of_protocol))


def test_a_bound_argument_is_not_filled() -> None:
    made = as_tool(functools.partial(spend, db=Database("x")))
    assert made._schema.filled is not None and made._schema.filled.resources == ()


def test_a_ready_schema_is_filled_too() -> None:
    made = function_tool(spend, name="spend", description="", parameters={"type": "object"})
    assert made._schema.filled is not None
    assert [each.name for each in made._schema.filled.resources] == ["db"]
    assert made._schema.validate({"db": 1, "x": 2}) == {"x": 2}


def test_a_resource_for_type_checkers_only_is_refused() -> None:
    """The model must not be asked for it."""
    with pytest.raises(
        ConfigurationError, match=r"the hint of 'db' cannot be resolved .*; import the class at run time"
    ):
        _ = as_tool(late)._schema


def test_a_class_that_no_dict_can_be_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match="function 'of_class': the context variables cannot have the type Customer"
    ):
        _ = as_tool(of_class)._schema


@pytest.mark.parametrize(
    ("function", "resources", "fault"),
    [
        (spend, {}, "the resource 'db' is missing; pass resources={'db': ...} to the run or to the swarm"),
        (
            spend,
            {"db": 7},
            "the resource 'db' is of the class int, not Database; pass one, or use a Protocol in the hint",
        ),
        (spend, {"db": Database()}, ""),
        (of_protocol, {"db": 7}, ""),
        (several, {"a": None, "b": [], "c": print}, ""),
        (several, {"a": 7, "b": [], "c": print}, "the resource 'a' is of the class int, not"),
        (several, {"a": None, "b": (), "c": print}, "the resource 'b' is of the class tuple, not list[str]"),
        (several, {"a": None, "b": [], "c": 7}, "the resource 'c' is of the class int"),
    ],
)
def test_which_resources_suit(function: Any, resources: Mapping[str, object], fault: str) -> None:
    """A class is checked, a protocol is not, and a parameter with a default is optional."""
    filled = as_tool(function)._schema.filled
    assert filled is not None
    found = [text for each in filled.resources if (text := each.fault(resources))]
    assert len(found) == bool(fault)
    assert all(fault in text for text in found)


def test_the_function_of_an_approval() -> None:
    """Its context is the second parameter, whatever its name."""
    made = tool(approve=by_arguments)(collect)
    assert made._filled_by_approve is not None
    assert (made._filled_by_approve.context, len(made._filled_by_approve.resources)) == ("shop", 1)
    assert tool(approve=True)(collect)._filled_by_approve is None


def test_the_parameters_of_a_function_are_read_once() -> None:
    def instructions(shop: Shop) -> str:
        return ""

    instructions.__annotations__["shop"] = Shop
    assert filled_parameters(instructions, 0) is filled_parameters(instructions, 0)
    assert filled_parameters(lambda: "", 0) is None
    assert filled_parameters(print, 0) is None


class Slotted:
    __slots__ = ()

    def __call__(self, context_variables: ShopItems) -> str:
        return ""

    def method(self, context_variables: Seen) -> str:
        return ""


def test_methods_and_callable_objects_are_filled() -> None:
    for function in (Slotted(), Slotted().method):
        found = filled_parameters(function)
        assert found is not None and found.kind is not None


def test_an_agent_lists_what_it_needs() -> None:
    from aswarm._tools.toolbox import toolbox

    made = tool(approve=by_arguments)(balance)
    assert [place for place, _ in toolbox(Agent(functions=[spend, made])).needs] == [
        "spend",
        "balance",
        "approve of balance",
    ]

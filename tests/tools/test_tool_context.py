"""Tools and the context: which tools take it, read it or write it, and run beside their neighbours."""

from __future__ import annotations

import functools
import types
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Protocol, TypeVar, runtime_checkable

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from aswarm import Agent, ConfigurationError, Resource, Result, Tool, tool
from aswarm._run.filling import filled_arguments
from aswarm._tools.filled import Filled, filled_parameters
from aswarm._tools.tool import (
    as_tool,
)
from aswarm._tools.toolbox import toolbox
from aswarm.tools import function_tool
from aswarm.util import function_to_json
from tests.support.run.typed_desk import Database, Seen, Shop, ShopItems, balance, collect, spend
from tests.support.tools.sample_functions import Slotted, find, look

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")


def _taking_context(hint: Any, *, is_coroutine: bool = True) -> Tool[..., Any]:
    async def coroutine(context_variables: Any) -> str:
        return ""

    def plain(context_variables: Any) -> str:
        return ""

    function: Callable[..., Any] = coroutine if is_coroutine else plain
    function.__annotations__["context_variables"] = hint
    return as_tool(function)


def _filled(hint: Any) -> Filled:
    filled = _taking_context(hint)._schema.filled
    assert filled is not None
    return filled


@pytest.mark.parametrize(
    ("hint", "reads"),
    [
        (Mapping, True),
        (Mapping[str, Any], True),
        ("Mapping[str, Any]", True),
        (Annotated[Mapping[str, Any], "shared"], True),
        (types.MappingProxyType, True),
        (dict, False),
        (dict[str, Any], False),
        (defaultdict, False),
        (MutableMapping, False),
        (Any, False),
        (object, False),
        (Mapping[str, Any] | None, False),
    ],
    ids=str,
)
def test_only_a_mapping_reads(hint: Any, reads: bool) -> None:
    """Who asks for a `Mapping` promises to read; who asks for anything else may write, and runs alone."""
    made = _taking_context(hint)
    assert made.effects.takes_context
    assert (made.effects.reads_context, made.effects.writes_context, made.effects.runs_together) == (
        reads,
        not reads,
        reads,
    )


def test_without_the_parameter_the_context_is_not_wanted() -> None:
    """A local variable of that name is no parameter (Swarm's `co_varnames` thought so)."""

    def f(city: str) -> str:
        context_variables = {"city": city}
        return str(context_variables)

    made = as_tool(f)
    assert (made.effects.takes_context, made.effects.reads_context, made.effects.writes_context) == (
        False,
        False,
        False,
    )
    assert made._schema.filled is None


def test_who_reads_gets_a_live_view_that_cannot_be_written() -> None:
    """The view shows the run's context; writing to it fails."""
    context: dict[str, Any] = {"user": "Ada"}
    with filled_arguments(_filled(Mapping), {}, context, {}) as filled:
        view = filled["context_variables"]
    assert dict(view) == context
    with pytest.raises(TypeError):
        view["user"] = "Eve"


def test_who_writes_gets_the_runs_own_dict() -> None:
    """Writing to it changes the run's context, as in Swarm; the model's arguments are not changed."""
    context: dict[str, Any] = {}
    arguments = {"city": "Paris"}
    with filled_arguments(_filled(dict), arguments, context, {}) as filled:
        assert filled["context_variables"] is context
    assert arguments == {"city": "Paris"}


@pytest.mark.parametrize(
    ("made", "together"),
    [
        (as_tool(find), True),
        (as_tool(look), False),
        (tool(concurrent=True)(look), True),
        (tool(concurrent=False)(find), False),
        (_taking_context(Mapping, is_coroutine=False), False),
        (_taking_context(dict, is_coroutine=False), False),
        (tool(concurrent=True)(_taking_context(dict).function), True),
        (as_tool(functools.partial(find)), True),
        (as_tool(Slotted()), True),
        (tool(thread=False)(look), False),
    ],
)
def test_what_runs_beside_its_neighbours(made: Tool[..., Any], together: bool) -> None:
    """The concurrency table: coroutine functions that do not write, and tools that declare it."""
    assert made.effects.runs_together is together


class _Closable(Protocol):
    name: str


class _Sub(Result):
    pass


class _Shape(TypedDict):
    a: int


class _Base(BaseModel):
    pass


_UserId = NewType("_UserId", str)
_UNSAID = object()


@pytest.mark.parametrize(
    ("hint", "may"),
    [
        (_UNSAID, True),
        (Any, True),
        (object, True),
        (Result, True),
        (_Sub, True),
        (BaseModel, True),
        ("Result", True),
        (Result | str, True),
        (str | Result | None, True),
        (Annotated[Result, "x"], True),
        (Awaitable[Result], True),
        (Coroutine[Any, Any, Result], True),
        (Awaitable[str | Result], True),
        (T, True),
        (_UserId, True),
        (_Closable, True),
        ("Missing", True),
        (str, False),
        (int, False),
        (None, False),
        (str | None, False),
        (dict[str, Any], False),
        (list[str], False),
        (Agent, False),
        (Agent | str, False),
        (Annotated[str, "x"], False),
        (Literal["a", "b"], False),
        (Awaitable[str], False),
        (_Base, False),
        (_Shape, False),
        (bytes, False),
    ],
    ids=lambda value: "unsaid" if value is _UNSAID else str(value),
)
@pytest.mark.filterwarnings("ignore:function 'f'")
def test_which_return_hints_admit_a_result(hint: Any, may: bool) -> None:
    """Only a hint that rules `Result` out promises that the context stays; a function without a hint may return one."""

    def f():  # type: ignore[no-untyped-def]
        ...

    if hint is not _UNSAID:
        f.__annotations__["return"] = hint
    assert as_tool(f).effects.may_return_result is may


def test_the_hints_of_a_function_with_a_ready_schema_count() -> None:
    """The hints of the context and of the result decide whether calls run together."""

    def ready(function: Any) -> Tool[..., Any]:
        return function_tool(function, name="ready", description="", parameters={"type": "object"})

    async def reads(context_variables: Mapping[str, Any]) -> str: ...
    async def writes(context_variables: dict[str, Any]) -> Result: ...

    assert (ready(reads).effects.reads_context, ready(reads).effects.writes_context) == (True, False)
    assert (ready(writes).effects.reads_context, ready(writes).effects.writes_context) == (False, True)
    assert [ready(each).effects.may_return_result for each in (reads, writes, len, dict)] == [False, True, True, True]


# --- parameters that the run fills ---


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
    assert (as_tool(balance).effects.reads_context, as_tool(balance).effects.runs_together) == (True, True)
    assert (as_tool(spend).effects.writes_context, as_tool(spend).effects.runs_together) == (True, False)


def test_a_resource_alone_does_not_make_a_call_run_alone() -> None:
    assert as_tool(of_protocol).effects.runs_together


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


class Row(TypedDict):
    id: int


def of_row(row: Resource[Row]) -> str:
    raise NotImplementedError


def test_a_resource_has_a_name() -> None:
    assert repr(Resource[int]).endswith("Resource]")


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
        (of_row, {"row": 7}, ""),  # `isinstance` refuses a TypedDict
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


class Desk:
    __slots__ = ()

    def __call__(self, context_variables: ShopItems) -> str:
        return ""

    def method(self, context_variables: Seen) -> str:
        return ""


def test_methods_and_callable_objects_are_filled() -> None:
    for function in (Desk(), Desk().method):
        found = filled_parameters(function)
        assert found is not None and found.kind is not None


def test_an_agent_lists_what_it_needs() -> None:
    made = tool(approve=by_arguments)(balance)
    assert [place for place, _ in toolbox(Agent(functions=[spend, made])).needs] == [
        "spend",
        "balance",
        "approve of balance",
    ]

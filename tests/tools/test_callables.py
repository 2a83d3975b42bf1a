"""What is behind a tool: methods, partials, decorated functions, classes, any callable."""

# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

import functools
from typing import Any

import pytest

from aswarm import Agent, ConfigurationError, tool
from aswarm.tools import function_tool
from aswarm.util import function_to_json
from tests.support.tools import annotated_functions
from tests.support.tools.hint_schemas import (
    Caller,
    Point,
    Service,
    complaints,
    names_of,
    parameters_of,
    received,
    refused,
)


class SlottedCaller:
    __slots__ = ()

    def __call__(self, city: str) -> str:
        """Call it."""
        return city


class UndocumentedCaller:
    """A class with a docstring."""

    def __call__(self, city: str) -> str:
        return city


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("function", "name", "description"),
    [
        (Service().find, "find", "Find something."),
        (Service().made, "made", "Of the class."),
        (Service.made, "made", "Of the class."),
        (Service().fixed, "fixed", "Of nobody."),
        (Service.fixed, "fixed", "Of nobody."),
        (Caller(), "Caller", "Call it."),
        (SlottedCaller(), "SlottedCaller", "Call it."),
        (UndocumentedCaller(), "UndocumentedCaller", "A class with a docstring."),
        (functools.partial(Caller()), "Caller", "Call it."),
        (functools.partial(Service().look, limit=5), "look", "Look around."),
        (functools.partial(functools.partial(Service().look, limit=5), limit=6), "look", "Look around."),
        (functools.partial(Service.look, Service(), limit=5), "look", "Look around."),
        (tool(name="other")(Caller()), "other", "Call it."),
    ],
)
def test_name_description_and_parameters_of_any_callable(function: Any, name: str, description: str) -> None:
    """Name and docstring come from the function behind; `self` and bound arguments are not offered."""
    assert function_to_json(function) == {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": CITY},
    }


def test_what_a_partial_binds_the_model_neither_sees_nor_sets() -> None:
    """A keyword-bound parameter is hidden; sent all the same, it is refused."""

    def pay(amount: int, token: str) -> None: ...

    function = functools.partial(pay, token="secret")
    assert list(parameters_of(function)["properties"]) == ["amount"]
    assert complaints(function, {"amount": 1, "token": "mine"}) == [
        "token: Extra inputs are not permitted (got 'mine')"
    ]


def test_what_a_partial_binds_is_not_overridden_through_further_arguments() -> None:
    """`**rest` takes any argument of the model, except an argument that the developer bound."""

    def pay(amount: int, **rest: Any) -> dict[str, Any]:
        return rest

    def pay_with(amount: int, token: str, **rest: Any) -> dict[str, Any]:
        return {"token": token, **rest}

    for function in (functools.partial(pay, token="secret"), functools.partial(pay_with, token="secret")):
        assert complaints(function, {"amount": 1, "token": "mine", "note": "n"})[0].startswith("token: ")


def transfer(department: str, reason: str) -> str:
    """Transfer the caller."""
    return f"{department}: {reason}"


def named_partial(name: str, description: str | None = None) -> Any:
    """A partial as code for Swarm makes it, which needs the name on the partial itself."""
    made: Any = functools.partial(transfer, department=name)
    made.__name__ = name
    if description is not None:
        made.__doc__ = description
    return made


def test_the_name_and_the_docstring_of_a_partial_are_its_own() -> None:
    """A name or docstring on a partial counts before the function behind."""
    sales, refunds = named_partial("to_sales", "For\n    buyers."), named_partial("to_refunds")
    assert names_of(Agent(functions=[sales, refunds])) == ["to_sales", "to_refunds"]
    described = [function_to_json(function)["function"] for function in (sales, refunds, functools.partial(refunds))]
    assert [(each["name"], each["description"]) for each in described] == [
        ("to_sales", "For\nbuyers."),
        ("to_refunds", "Transfer the caller."),
        ("to_refunds", "Transfer the caller."),
    ]
    assert [list(each["parameters"]["properties"]) for each in described] == [["reason"]] * 3


def test_a_partial_with_everything_of_its_function() -> None:
    """`functools.update_wrapper` makes a partial look like its function; bound arguments are hidden all the same."""
    partial = functools.partial(transfer, "sales")
    functools.update_wrapper(partial, transfer)
    made = function_to_json(functools.partial(partial))["function"]
    assert (made["name"], made["description"]) == ("transfer", "Transfer the caller.")
    assert list(made["parameters"]["properties"]) == ["reason"]


def test_a_context_bound_by_a_partial_is_the_developers() -> None:
    """Where the developer bound the context variables, the run's are not wanted."""

    def f(city: str, context_variables: dict[str, Any]) -> None: ...

    bound = functools.partial(f, context_variables={"own": 1})
    assert received(bound, {"city": "Rome"}) == {"city": "Rome", "context_variables": {"own": 1}}
    assert received(f, {"city": "Rome"}) == {"city": "Rome", "context_variables": {}}


def test_a_decorated_function_is_the_function_behind() -> None:
    """`functools.wraps` keeps name, docstring and signature, for plain and coroutine functions."""

    @annotated_functions.logged
    def look(city: str, limit: int = 3) -> str:
        """Look around."""
        return city

    @annotated_functions.logged
    async def find(city: str, limit: int = 3) -> str:
        """Look around."""
        return city

    for function, name in ((look, "look"), (find, "find")):
        made = function_to_json(function)["function"]
        assert (made["name"], made["description"]) == (name, "Look around.")
        assert list(made["parameters"]["properties"]) == ["city", "limit"]


def test_a_class_is_its_constructor() -> None:
    """A dataclass or a model among the functions makes an instance."""
    assert parameters_of(Point) == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
        "required": ["x"],
    }


@pytest.mark.parametrize("thing", [None, 5, "look", {"type": "function"}, object()])
def test_what_is_not_callable_is_refused(thing: object) -> None:
    """The error shows the object."""
    assert repr(thing) in refused(thing)


class Counter:
    def __call__(self, city: str) -> Any:
        yield city

    def count(self, city: str) -> Any:
        yield city


@tool
def count(city: str) -> Any:
    """Count."""
    yield city


@pytest.mark.parametrize(
    "function", [Counter(), Counter().count, functools.partial(Counter().count), count, Counter.count]
)
def test_a_generator_function_is_refused(function: Any) -> None:
    """The model would get the repr of a generator; the error has the remedy."""
    with pytest.raises(ConfigurationError, match=r"is a generator function.* return the whole result"):
        function_to_json(function)


def test_a_generator_function_is_refused_with_a_ready_schema_too() -> None:
    """`function_tool` raises the error when the tool is made."""
    with pytest.raises(ConfigurationError, match="function 'count' is a generator function"):
        function_tool(Counter().count, name="count", description="", parameters={"type": "object"})

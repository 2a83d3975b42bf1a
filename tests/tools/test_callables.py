"""What is behind a tool: methods, partials, decorated functions, classes, any callable."""

# No `from __future__ import annotations`: these hints are objects; annotated_functions.py has the ones that are text.

import functools
from typing import Any

import annotated_functions
import pytest
from hint_schemas import Caller, Point, Service, complaints, parameters_of, refused

from aswarm import ToolArgumentsError, function_to_json, tool
from aswarm._tools.schema import schema_of


class SlottedCaller:
    __slots__ = ()

    def __call__(self, city: str) -> str:
        """Call it."""
        return city


class UndocumentedCaller:
    """What the class says."""

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
        (UndocumentedCaller(), "UndocumentedCaller", "What the class says."),
        (functools.partial(Caller()), "Caller", "Call it."),
        (functools.partial(Service().look, limit=5), "look", "Look around."),
        (functools.partial(functools.partial(Service().look, limit=5), limit=6), "look", "Look around."),
        (functools.partial(Service.look, Service(), limit=5), "look", "Look around."),
        (tool(name="other")(Caller()), "other", "Call it."),
    ],
)
def test_name_description_and_parameters_of_any_callable(function: Any, name: str, description: str) -> None:
    """The name and the docstring are those of the function behind; `self` and what was bound are not offered."""
    assert function_to_json(function) == {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": CITY},
    }


def test_a_bound_method_offers_no_self() -> None:
    """`self` is bound; the rest is offered."""
    assert list(parameters_of(Service().look)["properties"]) == ["city", "limit"]


def test_what_a_partial_binds_the_model_neither_sees_nor_sets() -> None:
    """A keyword-bound parameter is hidden; sent all the same, it is refused."""

    def pay(amount: int, token: str) -> None: ...

    function = functools.partial(pay, token="secret")
    assert list(parameters_of(function)["properties"]) == ["amount"]
    assert complaints(function, {"amount": 1, "token": "mine"}) == [
        "token: Extra inputs are not permitted (got 'mine')"
    ]


def test_what_a_partial_binds_is_not_overridden_through_further_arguments() -> None:
    """`**rest` takes whatever the model sends, but not what the developer bound."""

    def pay(amount: int, **rest: Any) -> dict[str, Any]:
        return rest

    def pay_with(amount: int, token: str, **rest: Any) -> dict[str, Any]:
        return {"token": token, **rest}

    for function in (functools.partial(pay, token="secret"), functools.partial(pay_with, token="secret")):
        try:
            valid = schema_of(function).validate({"amount": 1, "token": "mine", "note": "n"})
        except ToolArgumentsError as error:
            assert "token" in str(error)  # noqa: PT017
        else:
            assert function(**valid)["token"] == "secret"


def test_a_context_bound_by_a_partial_is_the_developers() -> None:
    """Where the developer bound the context variables, the run's are not wanted."""

    def f(city: str, context_variables: dict[str, Any]) -> None: ...

    assert schema_of(functools.partial(f, context_variables={})).context_hint is None
    assert schema_of(f).context_hint == dict[str, Any]


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


def test_a_coroutine_function_is_described_like_a_function() -> None:
    """`async` makes no difference to the model."""

    def plain(city: str) -> str:
        """Look."""
        return city

    async def coroutine(city: str) -> str:
        """Look."""
        return city

    coroutine.__name__ = "plain"
    assert function_to_json(plain) == function_to_json(coroutine)


def test_a_class_is_its_constructor() -> None:
    """A dataclass or a model among the functions makes an instance."""
    assert parameters_of(Point) == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "label": {"type": "string"}},
        "required": ["x"],
    }


@pytest.mark.parametrize("thing", [None, 5, "look", {"type": "function"}, object()])
def test_what_is_not_callable_is_refused(thing: object) -> None:
    """The error shows what it was."""
    assert repr(thing) in refused(thing)
